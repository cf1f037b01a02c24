"""LayerNorm over one axis wherever it is: what vision models write with permutes around torch's."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_floating, check_sizes, check_whole, shape_text
from .._typing import ArrayLike, DType
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array


class ChannelNorm(nnx.Module):
    """scale · (x − mean) / √(variance + epsilon) + bias over one axis, computed in float32 at least.

    Args:
        features: the size of the axis.
        axis: negative, so that it is the same one with and without a batch: −3 are the channels of [B, C, H, W].
        keep_dtype: the result has the dtype of the inputs; else what inputs and scale promote to.
        epsilon: added to the variance.
        use_scale: whether there is a scale.
        use_bias: whether there is a bias.
        dtype: of the result, goes before `keep_dtype`.
        param_dtype: of scale and bias.
        rngs: without effect, the scale starts at 1.
    """

    def __init__(
        self,
        features: int,
        *,
        axis: int = -1,
        keep_dtype: bool = False,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_sizes(features=features)
        check_whole("axis", axis)
        self.features, self.axis, self.keep_dtype, self.epsilon, self.dtype = features, axis, keep_dtype, epsilon, dtype
        self.scale = nnx.Param(jnp.ones(features, param_dtype)) if use_scale else None
        self.bias = nnx.Param(jnp.zeros(features, param_dtype)) if use_bias else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, features, *] → the same shape.

        Raises:
            ValueError: another size of the axis.
        """
        inputs = as_array(inputs)
        check_floating("inputs", inputs)
        if inputs.ndim < -self.axis or inputs.shape[self.axis] != self.features:
            raise ValueError(
                f"`inputs` must have {self.features} features on axis {self.axis}, got {shape_text(inputs.shape)}."
            )
        operands = [inputs, *(p[...] for p in (self.scale, self.bias) if p is not None and not self.keep_dtype)]
        dtype = self.dtype or jnp.result_type(*operands)
        x = inputs.astype(at_least_float32(dtype))
        x = x - jnp.mean(x, self.axis, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, self.axis, keepdims=True) + self.epsilon)
        shape = [1] * x.ndim
        shape[self.axis] = self.features
        if self.scale is not None:
            x = x * self.scale[...].astype(x.dtype).reshape(shape)
        if self.bias is not None:
            x = x + self.bias[...].astype(x.dtype).reshape(shape)
        return x.astype(dtype)
