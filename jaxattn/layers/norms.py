"""Normalisation with PyTorch's constants and arithmetic."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_sizes
from .._typing import ArrayLike, DType
from ..core.dtypes import at_least_float32
from ..core.index_functions import with_rank
from ..core.mask_arrays import as_array


class LayerNorm(nnx.LayerNorm):
    """scale · (x − mean) / √(variance + epsilon) + bias over the last axis, computed in float32 at least.

    The variance is that of centred values: E[x²] − E[x]² cancels. All casts are explicit, so strict dtype promotion
    allows bfloat16, for which nnx.LayerNorm raises there.

    Args:
        features: D, the size of the last axis.
        epsilon: added to the variance; the default is torch's.
        use_scale: whether there is a scale.
        use_bias: whether there is a bias.
        dtype: of the result; None promotes inputs and parameters.
        param_dtype: of the parameters.
        rngs: without effect, the scale starts at 1 and the bias at 0.

    Reference: Ba et al. 2016, https://arxiv.org/abs/1607.06450
    """

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_sizes(features=features)
        super().__init__(
            features,
            epsilon=epsilon,
            use_scale=use_scale,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            use_fast_variance=False,
            rngs=rngs,
        )

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, D] → the same shape."""
        parameters = (None if held is None else held[...] for held in (self.scale, self.bias))
        x, scale, bias = self.promote_dtype((as_array(inputs), *parameters), dtype=self.dtype)
        dtype = x.dtype
        x, scale, bias = (_wide(array) for array in (x, scale, bias))
        centred = x - jnp.mean(x, -1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + self.epsilon)
        outputs = centred * (factor if scale is None else factor * with_rank(scale, x.ndim))
        return (outputs if bias is None else outputs + with_rank(bias, x.ndim)).astype(dtype)


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
        self.features = tuple(features) if isinstance(features, Sequence) else (features,)
        for size in self.features:
            check_sizes(features=size)
        self.epsilon, self.dtype = epsilon, dtype
        self.scale = nnx.Param(jnp.ones(self.features, param_dtype)) if use_scale else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, features] → the same shape."""
        inputs = as_array(inputs)
        scale = None if self.scale is None else self.scale[...]
        dtype = self.dtype or jnp.result_type(inputs, *([] if scale is None else [scale]))
        x = inputs.astype(at_least_float32(dtype))
        epsilon = jnp.finfo(x.dtype).eps if self.epsilon is None else self.epsilon
        axes = tuple(range(-len(self.features), 0))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + epsilon)
        return (x if scale is None else x * with_rank(scale.astype(x.dtype), x.ndim)).astype(dtype)


def _wide(array: Any) -> Any:
    return None if array is None else array.astype(at_least_float32(array))
