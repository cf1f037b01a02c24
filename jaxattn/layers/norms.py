"""Normalisation with PyTorch's constants and arithmetic."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from .._typing import ArrayLike, DType


def layer_norm(
    features: int,
    *,
    epsilon: float = 1e-5,
    use_scale: bool = True,
    use_bias: bool = True,
    dtype: DType = None,
    param_dtype: DType = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.LayerNorm:
    """nnx.LayerNorm with torch's epsilon, and the variance of centred values: E[x²] − E[x]² cancels."""
    return nnx.LayerNorm(
        features,
        epsilon=epsilon,
        use_scale=use_scale,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        use_fast_variance=False,
        rngs=rngs,
    )


class RMSNorm(nnx.Module):
    """scale · x / √(mean(x²) + epsilon) over the last axes, computed in float32 at least.

    Args:
        features: the sizes of the last axes; one int for the last.
        epsilon: added to the mean; None is the machine epsilon of the dtype that it is computed in.
        use_scale: whether there is a scale.
        dtype: of the result; None promotes inputs and scale.
        param_dtype: of the scale.
        rngs: without effect, the scale starts at 1.

    Reference: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467
    """

    def __init__(
        self,
        features: int | Sequence[int],
        *,
        epsilon: float | None = None,
        use_scale: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        self.features = (features,) if isinstance(features, int) else tuple(features)
        self.epsilon, self.dtype = epsilon, dtype
        self.scale = nnx.Param(jnp.ones(self.features, param_dtype)) if use_scale else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, features] → the same shape."""
        inputs = jnp.asarray(inputs)
        scale = None if self.scale is None else self.scale[...]
        dtype = self.dtype or jnp.result_type(inputs, *([] if scale is None else [scale]))
        x = inputs.astype(jnp.promote_types(dtype, jnp.float32))
        epsilon = jnp.finfo(x.dtype).eps if self.epsilon is None else self.epsilon
        axes = tuple(range(-len(self.features), 0))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + epsilon)
        return (x if scale is None else x * scale.astype(x.dtype)).astype(dtype)
