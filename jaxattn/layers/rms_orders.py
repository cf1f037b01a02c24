"""RMSNorm with the casts of each family of models: where bfloat16 rounds is a part of their formula."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_choice, check_floating, check_sizes, shape_text
from .._typing import ArrayLike, DType
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array

#: What is rounded to which dtype, and when. Between, everything is float32 at least: of float64, unlike there, float64.
ORDERS = (
    "normalise, cast, scale",  # Llama, Qwen, Mistral: to the inputs' dtype, then by the scale, in what both promote to
    "normalise, scale, cast",  # Gemma, OLMo 2: by the scale, then to the inputs' dtype
    "cast to a half scale",  # T5: to the scale's dtype if that is a half one, then by the scale
)


class OrderedRMSNorm(nnx.Module):
    """(offset + scale) · x / √(mean(x²) + epsilon) over the last axis.

    Args:
        features: D, the size of the last axis; None takes any, for a norm without scale.
        order: one of `ORDERS`.
        offset: added to the scale in float32 at least; Gemma's is 1.
        epsilon: added to the mean.
        use_scale: whether there is a scale.
        dtype: of inputs and scale before everything else; None leaves them.
        param_dtype: of the scale.
        rngs: without effect, the scale starts at 1 − offset.

    Reference: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467
    """

    def __init__(
        self,
        features: int | None,
        *,
        order: str = ORDERS[0],
        offset: float = 0.0,
        epsilon: float = 1e-6,
        use_scale: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_choice("order", order, ORDERS)
        if use_scale or features is not None:
            check_sizes(features=features)
        self.features, self.order, self.offset, self.epsilon, self.dtype = features, order, offset, epsilon, dtype
        self.scale = nnx.Param(jnp.full(features, 1 - offset, param_dtype)) if use_scale and features else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, D] → the same shape.

        Raises:
            ValueError: another number of features.
        """
        inputs = as_array(inputs)
        check_floating("inputs", inputs)
        if inputs.ndim == 0 or self.features not in (None, inputs.shape[-1]):
            raise ValueError(f"`inputs` must be [*, {self.features}], got shape {shape_text(inputs.shape)}.")
        inputs = inputs if self.dtype is None else inputs.astype(self.dtype)
        x = inputs.astype(at_least_float32(inputs))
        factor = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.epsilon)
        if self.scale is None:
            return (x * factor).astype(inputs.dtype)
        scale = self.scale[...] if self.dtype is None else self.scale[...].astype(self.dtype)
        scale = scale.reshape((1,) * (x.ndim - 1) + (-1,))
        if self.order == "normalise, scale, cast":
            return _product(self.offset + scale.astype(x.dtype), x * factor).astype(inputs.dtype)
        if self.order == "normalise, cast, scale":
            return _product(scale, (x * factor).astype(inputs.dtype))
        half = scale.dtype in (jnp.float16, jnp.bfloat16)
        return _product(scale, (x * factor).astype(scale.dtype) if half else x * factor)


def _product(one: jax.Array, other: jax.Array) -> jax.Array:
    """In what both promote to, also where JAX is told not to promote by itself."""
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.promote_types(one.dtype, other.dtype)
    return one.astype(dtype) * other.astype(dtype)
