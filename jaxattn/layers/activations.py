"""Activations as modules: seen by capture, their constants in plain sight, with PyTorch's formulas and gradients."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_channels, check_whole, shape_text
from .._typing import ArrayLike, DType
from ..core.activations import ACTIVATIONS
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array


def _between(inputs: jax.Array, low: float, high: float) -> jax.Array:
    """Clipped, with torch's gradient at the ends: 0."""
    return jnp.where(inputs <= low, low, jnp.where(inputs >= high, high, inputs))


def _clipped_gelu(inputs: jax.Array, min: float, max: float) -> jax.Array:
    """torch.clip lets the gradient pass at the ends."""
    gelu = ACTIVATIONS["gelu"](inputs)
    return jnp.where(gelu < min, min, jnp.where(gelu > max, max, gelu))


def _elu(inputs: jax.Array, alpha: float, scale: float = 1.0, width: float = 1.0) -> jax.Array:
    """scale · (x, or alpha (exp(x / width) − 1) where x ≤ 0)."""
    below = jnp.where(inputs > 0, 0, inputs) / width
    return jnp.where(inputs > 0, scale * inputs, scale * alpha * jnp.expm1(below))


def _gelu_fast(inputs: jax.Array) -> jax.Array:
    """½ x (1 + tanh(0.7978845608 x (1 + 0.044715 x²))), as a sigmoid."""
    return inputs * jax.nn.sigmoid(2 * 0.7978845608 * inputs * (1 + 0.044715 * inputs * inputs))


def _glu(inputs: jax.Array, dim: int) -> jax.Array:
    """The first half of axis `dim` times the sigmoid of the second."""
    if inputs.ndim == 0 or inputs.shape[dim] % 2:
        raise ValueError(f"`glu` halves axis {dim}, whose size must be even, got shape {shape_text(inputs.shape)}.")
    first, second = jnp.split(inputs, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


def _laplace(inputs: jax.Array) -> jax.Array:
    return 0.5 * (1 + jax.lax.erf((inputs - 0.707107) / (0.282095 * math.sqrt(2.0))))


def _softplus(inputs: jax.Array, beta: float, threshold: float) -> jax.Array:
    scaled = inputs * beta
    return jnp.where(scaled > threshold, inputs, jax.nn.softplus(scaled) / beta)


def _softshrink(inputs: jax.Array, lambd: float) -> jax.Array:
    moved = jnp.where(inputs > 0, inputs - lambd, inputs + lambd)
    return jnp.where(jnp.abs(inputs) <= lambd, 0, moved)


_FORMULAS: dict[str, tuple[Callable[..., jax.Array], dict[str, Any]]] = {
    "celu": (lambda x, alpha: _elu(x, alpha, width=alpha), {"alpha": 1.0}),
    "clipped_gelu": (_clipped_gelu, {"min": -10.0, "max": 10.0}),
    "elu": (_elu, {"alpha": 1.0}),
    "gelu_fast": (_gelu_fast, {}),
    "glu": (_glu, {"dim": -1}),
    "hardshrink": (lambda x, lambd: jnp.where(jnp.abs(x) <= lambd, 0, x), {"lambd": 0.5}),
    "hardsigmoid": (lambda x: _between(x + 3, 0.0, 6.0) / 6, {}),
    "hardswish": (lambda x: x * _between(x + 3, 0.0, 6.0) / 6, {}),
    "hardtanh": (lambda x, min_val, max_val: _between(x, min_val, max_val), {"min_val": -1.0, "max_val": 1.0}),
    "identity": (lambda x: x, {}),
    "laplace": (_laplace, {}),
    "leaky_relu": (lambda x, negative_slope: jnp.where(x > 0, x, x * negative_slope), {"negative_slope": 0.01}),
    "log_softmax": (lambda x, dim: jax.nn.log_softmax(x, axis=dim), {"dim": -1}),
    "logsigmoid": (jax.nn.log_sigmoid, {}),
    "mish": (lambda x: x * jnp.tanh(jax.nn.softplus(x)), {}),
    "relu6": (lambda x: _between(x, 0.0, 6.0), {}),
    "relu_squared": (lambda x: jax.nn.relu(x) ** 2, {}),
    "selu": (lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805), {}),
    "sigmoid": (jax.nn.sigmoid, {}),
    "softmax": (lambda x, dim: jax.nn.softmax(x, axis=dim), {"dim": -1}),
    "softmin": (lambda x, dim: jax.nn.softmax(-x, axis=dim), {"dim": -1}),
    "softplus": (_softplus, {"beta": 1.0, "threshold": 20.0}),
    "softshrink": (_softshrink, {"lambd": 0.5}),
    "softsign": (lambda x: x / (1 + jnp.abs(x)), {}),
    "sqrt_softplus": (lambda x: jnp.sqrt(_softplus(x, 1.0, 20.0)), {}),
    "tanhshrink": (lambda x: x - jnp.tanh(x), {}),
    "threshold": (lambda x, threshold, value: jnp.where(x <= threshold, value, x), {"threshold": 0.0, "value": 0.0}),
}


class Activation(nnx.Module):
    """f(inputs), computed in float32 at least. Two of one name and equal constants compute the same.

    Args:
        name: one of `core.activations`, or "celu", "clipped_gelu", "elu", "gelu_fast", "glu", "hardshrink",
            "hardsigmoid", "hardswish", "hardtanh", "identity", "laplace", "leaky_relu", "log_softmax", "logsigmoid",
            "mish", "relu6", "relu_squared", "selu", "sigmoid", "softmax", "softmin", "softplus", "softshrink",
            "softsign", "sqrt_softplus", "tanhshrink", "threshold".
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
        if "dim" in constants:
            check_whole("dim", constants["dim"])
        self.name = name
        for constant, value in {**defaults, **constants}.items():
            setattr(self, constant, value)

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*] → [*]; "glu" halves its axis."""
        formula, constants = _FORMULAS[self.name] if self.name in _FORMULAS else (ACTIVATIONS[self.name], {})
        inputs = as_array(inputs)
        wide = inputs.astype(at_least_float32(inputs))
        return formula(wide, **{constant: getattr(self, constant) for constant in constants}).astype(inputs.dtype)


class RReLU(nnx.Module):
    """x where x > 0, ½ (lower + upper) x elsewhere: torch's in evaluation; in training it draws slopes."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3):
        self.lower, self.upper = lower, upper

    def __call__(self, inputs: ArrayLike, *, deterministic: bool = True) -> jax.Array:
        """inputs [*] → [*].

        Raises:
            NotImplementedError: `deterministic=False`.
        """
        if not deterministic:
            raise NotImplementedError(
                "RReLU must be called with deterministic=True: in training torch draws a slope for each element, which "
                "has no counterpart here. Train with LeakyReLU, whose slope is fixed."
            )
        inputs = as_array(inputs)
        return jnp.where(inputs > 0, inputs, inputs * ((self.lower + self.upper) / 2))


class PReLU(nnx.Module):
    """x where x > 0, weight · x elsewhere.

    Args:
        num_parameters: 1, or one for each channel; channels are axis 1.
        param_dtype: of the weight.
        rngs: without effect, the weight starts at 0.25.
    """

    def __init__(self, num_parameters: int = 1, *, param_dtype: DType = jnp.float32, rngs: nnx.Rngs | None = None):
        del rngs
        check_whole("num_parameters", num_parameters, least=1)
        self.num_parameters = num_parameters
        self.weight = nnx.Param(jnp.full((num_parameters,), 0.25, param_dtype))

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*] → [*].

        Raises:
            ValueError: another number of channels.
        """
        inputs, weight = as_array(inputs), self.weight[...]
        if self.num_parameters > 1:
            check_channels("inputs", inputs, self.num_parameters)
        shape = [1] * inputs.ndim
        if inputs.ndim > 1:
            shape[1] = self.num_parameters
        weight = weight.reshape(shape)
        return jnp.where(inputs > 0, inputs, weight * inputs)
