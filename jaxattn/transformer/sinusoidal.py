"""Sinusoidal positional encoding as a module."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_features, check_sizes, exceeds, shape_text
from .._typing import ArrayLike, DType, Size
from ..convert.registry import register
from ..core.dtypes import at_least_float32
from ..core.index_functions import with_rank
from ..core.sinusoidal import sinusoidal_table


@register("torchref.transformer.sinusoidal.SinusoidalPositionalEncoding")
class SinusoidalPositionalEncoding(nnx.Module):
    """output = x + pe, pe[t, 2i] = sin(t / 10000^(2i/D)), pe[t, 2i+1] = cos(t / 10000^(2i/D)).

    It has no parameters and nothing in the state dict.

    Args:
        embed_dim: D, in features; may be odd.
        max_len: the longest sequence taken, in tokens.
        dtype: of the computation; None is that of the input.
        param_dtype: without effect, there are no parameters.
        rngs: without effect, likewise.

    Reference: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        max_len: int = 5000,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del param_dtype, rngs
        check_sizes(embed_dim=embed_dim, max_len=max_len)
        self.embed_dim = embed_dim
        self.max_len = max_len
        self.dtype = dtype

    def __call__(self, x: ArrayLike) -> jax.Array:
        """x [*B, T, D] → [*B, T, D], in x's dtype.

        Raises:
            ValueError: more than max_len tokens, or another width than embed_dim.
        """
        x = jnp.asarray(x)
        check_features("x", x, self.embed_dim, "[*B, T, embed_dim]")
        if exceeds(x.shape[-2], self.max_len):
            raise ValueError(
                f"`x` must have at most max_len={self.max_len} tokens (axis -2), got shape {shape_text(x.shape)}; "
                "construct with a larger `max_len`."
            )
        dtype = x.dtype if self.dtype is None else self.dtype
        wide = at_least_float32(dtype)
        table = jnp.asarray(self._table(x.shape[-2]), wide)
        return (x.astype(wide) + with_rank(table, x.ndim)).astype(dtype)

    def _table(self, length: Size) -> Any:
        """[length, D]; where the length is symbolic (jax.export), rows of a table of max_len, NaN beyond it."""
        if isinstance(length, int):
            return sinusoidal_table(length, self.embed_dim)
        return jnp.take(sinusoidal_table(self.max_len, self.embed_dim), jnp.arange(length), axis=0)
