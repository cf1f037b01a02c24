"""torch.nn.GroupNorm."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_channels, check_sizes
from .._typing import ArrayLike, DType
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array


class GroupNorm(nnx.Module):
    """weight · (x − mean) / √(variance + epsilon) + bias, statistics over each group of channels of each example.

    Computed in float32 at least, with the variance of centred values.

    Args:
        num_groups: must divide the channels.
        num_channels: C, on axis 1.
        epsilon: added to the variance.
        affine: whether there are weight and bias, one for each channel.
        dtype: of the result; None promotes inputs and weight.
        param_dtype: of weight and bias.
        rngs: without effect, the scale starts at 1.

    Reference: Wu and He 2018, https://arxiv.org/abs/1803.08494
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_sizes(num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(
                f"`num_groups` must divide `num_channels`, got num_groups={num_groups}, num_channels={num_channels}."
            )
        self.num_groups, self.num_channels, self.epsilon, self.dtype = num_groups, num_channels, epsilon, dtype
        self.weight = nnx.Param(jnp.ones(num_channels, param_dtype)) if affine else None
        self.bias = nnx.Param(jnp.zeros(num_channels, param_dtype)) if affine else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [B, C, *] → the same shape.

        Raises:
            ValueError: another number of channels.
        """
        inputs = as_array(inputs)
        check_channels("inputs", inputs, self.num_channels)
        operands = [inputs] if self.weight is None else [inputs, self.weight[...]]
        dtype = self.dtype or jnp.result_type(*operands)
        x = inputs.astype(at_least_float32(dtype))
        grouped = x.reshape(x.shape[0], self.num_groups, -1)
        grouped = grouped - jnp.mean(grouped, -1, keepdims=True)
        variance = jnp.mean(grouped * grouped, -1, keepdims=True)
        x = (grouped * jax.lax.rsqrt(variance + self.epsilon)).reshape(x.shape)
        if self.weight is not None and self.bias is not None:
            shape = (1, -1, *(1,) * (x.ndim - 2))
            x = x * self.weight[...].astype(x.dtype).reshape(shape) + self.bias[...].astype(x.dtype).reshape(shape)
        return x.astype(dtype)
