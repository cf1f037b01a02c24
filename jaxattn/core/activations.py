"""Activations under the names that PyTorch and checkpoint configurations use, each with its exact formula."""

import math
from collections.abc import Callable

import jax

Activation = Callable[[jax.Array], jax.Array]


def gelu_exact(inputs: jax.Array) -> jax.Array:
    """x · Φ(x) with the error function: torch's default (JAX's own default is the tanh approximation)."""
    return jax.nn.gelu(inputs, approximate=False)


def gelu_tanh(inputs: jax.Array) -> jax.Array:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), the factor as a sigmoid: 1 + tanh cancels, most of all in gradients."""
    return inputs * jax.nn.sigmoid(math.sqrt(8 / math.pi) * (inputs + 0.044715 * inputs**3))


def gelu_quick(inputs: jax.Array) -> jax.Array:
    """x · σ(1.702 x), OpenAI CLIP's."""
    return inputs * jax.nn.sigmoid(1.702 * inputs)


ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    "gelu": gelu_exact,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": gelu_quick,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}


def activation_function(name_or_function: str | Activation) -> Activation:
    """The function of that name; a callable is taken as it is.

    Raises:
        ValueError: an unknown name.
    """
    if callable(name_or_function):
        return name_or_function
    if name_or_function not in ACTIVATIONS:
        raise ValueError(f"`activation` must be a callable or one of {sorted(ACTIVATIONS)}, got {name_or_function!r}.")
    return ACTIVATIONS[name_or_function]
