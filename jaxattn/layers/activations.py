"""Activations as modules: seen by capture, their constants in plain sight, with PyTorch's formulas and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._typing import ArrayLike, DType
from ..core.activations import ACTIVATIONS


def _between(inputs: jax.Array, low: float, high: float) -> jax.Array:
    """Clipped, with torch's gradient at the ends: 0."""
    return jnp.where(inputs <= low, low, jnp.where(inputs >= high, high, inputs))


def _elu(inputs: jax.Array, alpha: float, scale: float = 1.0, width: float = 1.0) -> jax.Array:
    """scale · (x, or alpha (exp(x / width) − 1) where x ≤ 0)."""
    below = jnp.where(inputs > 0, 0, inputs) / width
    return jnp.where(inputs > 0, scale * inputs, scale * alpha * jnp.expm1(below))


def _softplus(inputs: jax.Array, beta: float, threshold: float) -> jax.Array:
    scaled = inputs * beta
    return jnp.where(scaled > threshold, inputs, jax.nn.softplus(scaled) / beta)


_FORMULAS: dict[str, tuple[Callable[..., jax.Array], dict[str, Any]]] = {
    "celu": (lambda x, alpha: _elu(x, alpha, width=alpha), {"alpha": 1.0}),
    "elu": (_elu, {"alpha": 1.0}),
    "hardsigmoid": (lambda x: _between(x + 3, 0.0, 6.0) / 6, {}),
    "hardswish": (lambda x: x * _between(x + 3, 0.0, 6.0) / 6, {}),
    "hardtanh": (lambda x, min_val, max_val: _between(x, min_val, max_val), {"min_val": -1.0, "max_val": 1.0}),
    "identity": (lambda x: x, {}),
    "leaky_relu": (lambda x, negative_slope: jnp.where(x > 0, x, x * negative_slope), {"negative_slope": 0.01}),
    "logsigmoid": (jax.nn.log_sigmoid, {}),
    "mish": (lambda x: x * jnp.tanh(jax.nn.softplus(x)), {}),
    "relu6": (lambda x: _between(x, 0.0, 6.0), {}),
    "selu": (lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805), {}),
    "sigmoid": (jax.nn.sigmoid, {}),
    "softmax": (lambda x, dim: jax.nn.softmax(x, axis=dim), {"dim": -1}),
    "softplus": (_softplus, {"beta": 1.0, "threshold": 20.0}),
    "softsign": (lambda x: x / (1 + jnp.abs(x)), {}),
}


class Activation(nnx.Module):
    """f(inputs), computed in float32 at least. Two of one name and equal constants compute the same.

    Args:
        name: one of `core.activations`, or "celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "identity",
            "leaky_relu", "logsigmoid", "mish", "relu6", "selu", "sigmoid", "softmax", "softplus", "softsign".
        constants: of that formula, under torch's names (negative_slope=0.01); attributes of the module.

    Raises:
        ValueError: an unknown name.
        TypeError: a constant that the formula doesn't have.
    """

    def __init__(self, name: str, **constants: float | int):
        if name not in _FORMULAS and name not in ACTIVATIONS:
            raise ValueError(f"`name` must be one of {sorted([*_FORMULAS, *ACTIVATIONS])}, got {name!r}.")
        defaults = _FORMULAS[name][1] if name in _FORMULAS else {}
        unknown = sorted(set(constants) - set(defaults))
        if unknown:
            raise TypeError(f"`{name}` takes {', '.join(defaults) or 'no constants'}, got {', '.join(unknown)}.")
        self.name = name
        for constant, value in {**defaults, **constants}.items():
            setattr(self, constant, value)

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*] → [*]."""
        formula, constants = _FORMULAS[self.name] if self.name in _FORMULAS else (ACTIVATIONS[self.name], {})
        inputs = jnp.asarray(inputs)
        wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        return formula(wide, **{constant: getattr(self, constant) for constant in constants}).astype(inputs.dtype)


class PReLU(nnx.Module):
    """x where x > 0, weight · x elsewhere.

    Args:
        num_parameters: 1, or one for each channel; channels are axis 1, the only axis of a vector.
        param_dtype: of the weight.
        rngs: without effect, the weight starts at 0.25.
    """

    def __init__(self, num_parameters: int = 1, *, param_dtype: DType = jnp.float32, rngs: nnx.Rngs | None = None):
        del rngs
        self.num_parameters = num_parameters
        self.weight = nnx.Param(jnp.full((num_parameters,), 0.25, param_dtype))

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*] → [*]."""
        inputs, weight = jnp.asarray(inputs), self.weight[...]
        if self.num_parameters > 1:
            weight = weight.reshape(-1, *[1] * (inputs.ndim - 2))
        return jnp.where(inputs > 0, inputs, weight * inputs)
