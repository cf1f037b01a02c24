"""Activations under the names that PyTorch and checkpoint configurations use, each with its exact formula."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

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


_JAX_MODULES = {"jax.nn": jax.nn, "jax.numpy": jnp}


@dataclass(frozen=True)
class JaxFunction:
    """A function of JAX by its module and name. What holds it can be pickled, which JAX's own objects refuse."""

    module: str
    name: str

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return getattr(_JAX_MODULES[self.module], self.name)(inputs)


ACTIVATIONS: dict[str, Activation] = {
    "relu": JaxFunction("jax.nn", "relu"),
    "gelu": gelu_exact,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": gelu_quick,
    "silu": JaxFunction("jax.nn", "silu"),
    "swish": JaxFunction("jax.nn", "silu"),
    "tanh": JaxFunction("jax.nn", "tanh"),
}


def activation_function(name_or_function: str | Activation) -> Activation:
    """The function of that name; a callable is taken as it is, and one of jax.nn or jax.numpy by its name.

    Raises:
        ValueError: an unknown name.
    """
    if callable(name_or_function):
        name = getattr(name_or_function, "__name__", "")
        owners = [owner for owner, held in _JAX_MODULES.items() if getattr(held, name, None) is name_or_function]
        return JaxFunction(owners[0], name) if owners else name_or_function
    if name_or_function not in ACTIVATIONS:
        raise ValueError(f"`activation` must be a callable or one of {sorted(ACTIVATIONS)}, got {name_or_function!r}.")
    return ACTIVATIONS[name_or_function]
