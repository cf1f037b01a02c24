"""What an implementation of attention is given, and what it gives back."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._typing import EmptyRow, Size
from .dtypes import at_least_float32
from .index_functions import with_rank
from .mask_base import Mask
from .score_mod import ScoreMod


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """One call of `dot_product_attention`, checked: arguments as the operation documents them.

    q is [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, V]; `scale` is a number or an array of rank 0, never None.
    """

    q: Any
    k: Any
    v: Any
    scale: Any
    mask: Mask | None = None
    bias: Any = None
    score_mod: ScoreMod | None = None
    dropout_rng: Any = None
    dropout_mask: Any = None
    soft_cap: float | None = field(default=None, metadata={"static": True})
    empty_row: EmptyRow = field(default="zero", metadata={"static": True})
    dropout_rate: float = field(default=0.0, metadata={"static": True})
    precision: Any = field(default=None, metadata={"static": True})

    @property
    def batch(self) -> tuple[Size, ...]:
        return self.q.shape[:-3]

    @property
    def num_heads(self) -> int:
        return self.q.shape[-2]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[-2]

    @property
    def length_q(self) -> Size:
        return self.q.shape[-3]

    @property
    def length_kv(self) -> Size:
        return self.k.shape[-3]

    @property
    def logits_shape(self) -> tuple[Size, ...]:
        """(*B, N, T, S)"""
        return (*self.batch, self.num_heads, self.length_q, self.length_kv)

    @property
    def dtype(self) -> Any:
        """Of logits, softmax and sums: float32 at least."""
        return at_least_float32(self.q, self.k, self.v)

    @property
    def drops(self) -> bool:
        """Whether dropout is applied."""
        return self.dropout_rate > 0.0 and (self.dropout_rng is not None or self.dropout_mask is not None)

    def flatten(self, array: Any) -> jax.Array:
        """An array that broadcasts to [*B, N, T, S] as [∏ B or 1, N or 1, T or 1, S or 1]."""
        full = with_rank(array, len(self.batch) + 3)
        lead, rest = full.shape[:-3], full.shape[-3:]
        if all(size == 1 for size in lead):
            return full.reshape(1, *rest)
        return jnp.broadcast_to(full, (*self.batch, *rest)).reshape(math.prod(self.batch), *rest)


class Result(NamedTuple):
    """output [*B, T, N, V] in q's dtype; m and l [*B, N, T], and the weights [*B, N, T, S] if there are any, in float32
    at least.

    A row with nothing to attend has l = 0 and the lowest finite number for m; m has no derivative, and l has its own at
    fixed m. Both are None where an implementation keeps none.
    """

    output: jax.Array
    row_max: Any
    row_sum: Any
    weights: Any = None
