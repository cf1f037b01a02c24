"""The kinds of masks that are known by a rule: which keys a query may attend to."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._checks import check_integers, check_mask_lengths, check_segment_ids, check_shape_in
from .._typing import Size
from .index_functions import Span, over_block, positions, with_rank
from .mask_arrays import is_traced
from .mask_base import Mask
from .mask_ranges import FAR, Range, bounded, clipped, is_int, larger


class _Positional(Mask):
    """A mask that compares positions with numbers, which are static or one for each example."""

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """True = may attend, for positions i [length, 1] and j [1, length]."""
        raise NotImplementedError

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        return self.block(Span(0, num_heads), Span(0, length_q), Span(0, length_kv))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return self._rule(positions(i)[:, None], positions(j)[None])


def _at_most(positions: jax.Array, bound: Any) -> jax.Array:
    """positions ≤ bound, for positions of rank 2 and one bound, or bounds [*B]: then with the axes [*B, 1, T, S]."""
    if is_int(bound):
        return positions <= bounded(bound)
    bounds = bounded(bound)[..., None, None, None]
    return with_rank(positions, bounds.ndim) <= bounds


def _moved(side: int, by: Any) -> Any:
    """side + by, within what `bounded` gives."""
    if is_int(by):
        return bounded(side + by)
    return bounded(bounded(side) + jnp.clip(bounded(by), 1 - FAR, FAR - 1))  # no sum beyond int32


def _check_per_example(name: str, numbers: Any, logits_shape: tuple[Size, ...]) -> None:
    check_integers(name, numbers)
    check_shape_in(name, numbers, (logits_shape[:-3], ()), "[*B], one for each example, or one for all")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Causal(_Positional):
    """j ≤ i + offset, the offset static or an array (`moving`)."""

    offset: int | None = field(metadata={"static": True})
    moving: Any = None
    _per_example: ClassVar[dict[str, int]] = {"moving": 0}

    @property
    def _offset(self) -> Any:
        return self.moving if self.offset is None else self.offset

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        return _at_most(j - i, self._offset)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        if self.offset is None:
            _check_per_example("offset", self.moving, logits_shape)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return clipped(0, i.start + i.size + bounded(self._offset), length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        return clipped(0, i.start + 1 + bounded(self._offset), length_kv)

    @property
    def is_static(self) -> bool:
        return self.offset is not None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlidingWindow(_Positional):
    """i + offset − left ≤ j ≤ i + offset + right; None is unbounded; the offset static or an array (`moving`)."""

    left: int | None = field(metadata={"static": True})
    right: int | None = field(metadata={"static": True})
    offset: int | None = field(default=0, metadata={"static": True})
    moving: Any = None
    _per_example: ClassVar[dict[str, int]] = {"moving": 0}

    @property
    def _sides(self) -> tuple[Any, Any]:
        """(before, after): i − before ≤ j ≤ i + after."""
        offset = self.moving if self.offset is None else self.offset
        before = FAR if self.left is None else _moved(self.left, -offset)
        return before, FAR if self.right is None else _moved(self.right, offset)

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        before, after = self._sides
        left, right = _at_most(i - j, before), _at_most(j - i, after)
        rank = max(left.ndim, right.ndim)
        return with_rank(left, rank) & with_rank(right, rank)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        if self.offset is None:
            _check_per_example("offset", self.moving, logits_shape)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        before, after = self._sides
        return clipped(i.start - before, i.start + i.size + after, length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        before, after = self._sides
        return clipped(i.start + i.size - 1 - before, i.start + 1 + after, length_kv)

    @property
    def is_static(self) -> bool:
        return self.offset is not None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padding(_Positional):
    """j < lengths[b]."""

    lengths: Any
    _per_example: ClassVar[dict[str, int]] = {"lengths": 0}

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        return _at_most(j + 1, self.lengths)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        _check_per_example("lengths", self.lengths, logits_shape)
        if not is_traced(self.lengths):
            check_mask_lengths(np.asarray(self.lengths), logits_shape[-1])

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return clipped(0, bounded(self.lengths), length_kv)

    full_range = key_range

    @property
    def is_static(self) -> bool:
        return False


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefix(_Positional):
    """j < n or j ≤ i, n static or an array (`lengths`)."""

    n: int | None = field(metadata={"static": True})
    lengths: Any = None
    _per_example: ClassVar[dict[str, int]] = {"lengths": 0}

    @property
    def _n(self) -> Any:
        return self.lengths if self.n is None else self.n

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        within = _at_most(j + 1, self._n)
        return within | with_rank(j <= i, within.ndim)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        if self.n is None:
            _check_per_example("n", self.lengths, logits_shape)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return clipped(0, larger(bounded(self._n), i.start + i.size), length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        return clipped(0, larger(bounded(self._n), i.start + 1), length_kv)

    @property
    def is_static(self) -> bool:
        return self.n is not None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Segments(Mask):
    """q_ids[b, i] == kv_ids[b, j]."""

    q_ids: Any
    kv_ids: Any
    _per_example: ClassVar[dict[str, int]] = {"q_ids": 1, "kv_ids": 1}

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        queries, keys = jnp.asarray(self.q_ids)[..., None, :, None], jnp.asarray(self.kv_ids)[..., None, None, :]
        rank = max(queries.ndim, keys.ndim)
        return with_rank(queries, rank) == with_rank(keys, rank)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        *batch, _, length_q, length_kv = logits_shape
        for name, ids, length in (("q_ids", self.q_ids, length_q), ("kv_ids", self.kv_ids, length_kv)):
            check_integers(name, ids)
            check_segment_ids(name, ids, batch, length)

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return self._queries(i)[:, None] == lax.dynamic_slice_in_dim(self.kv_ids, j.start, j.size)[None]

    def key_range(self, i: Span, length_kv: Size) -> Range:
        """The hull of the keys whose id lies between the least and the greatest id of the span's queries."""
        ids, j = self._queries(i), jnp.arange(length_kv, dtype=jnp.int32)
        near = (self.kv_ids >= ids.min()) & (self.kv_ids <= ids.max())
        return clipped(jnp.where(near, j, length_kv).min(), jnp.where(near, j + 1, 0).max(), length_kv)

    @property
    def is_static(self) -> bool:
        return False

    def _queries(self, i: Span) -> jax.Array:
        return lax.dynamic_slice_in_dim(self.q_ids, i.start, i.size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FromPredicate(Mask):
    """fn(b, n, i, j, *arrays) → bool; `example` is b once it is known."""

    fn: Callable = field(metadata={"static": True})
    arrays: tuple
    example: Any = None

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        spans = (Span(0, num_heads), Span(0, length_q), Span(0, length_kv))
        if self.example is not None:
            return self.block(*spans)
        each = jax.vmap(lambda b: self.at(b).block(*spans))(jnp.arange(math.prod(batch), dtype=jnp.int32))
        return each.reshape(*batch, *each.shape[1:])

    def at(self, b: Any) -> Mask:
        return FromPredicate(self.fn, self.arrays, jnp.asarray(b, jnp.int32))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return over_block(lambda n, i, j: jnp.asarray(self.fn(self.example, n, i, j, *self.arrays)), n, i, j)
