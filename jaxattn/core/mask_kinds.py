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
from .index_functions import Span, over_block, positions
from .mask_arrays import is_traced
from .mask_base import Mask
from .mask_ranges import FAR, Range, bounded, clipped, larger


class _Positional(Mask):
    """A mask that compares positions with numbers, which are static or one for each example."""

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """True = may attend, for positions i [length, 1] and j [length]."""
        raise NotImplementedError

    def to_array(self, length_q: int, length_kv: int, *, batch: tuple[int, ...] = (), num_heads: int = 1) -> jax.Array:
        return self._rule(positions(Span(0, length_q))[:, None], positions(Span(0, length_kv)))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return self._rule(positions(i)[:, None], positions(j))


def _spread(numbers: Any) -> Any:
    """One number, or [*B] numbers as [*B, 1, 1, 1]."""
    return bounded(numbers) if isinstance(numbers, int) else bounded(numbers)[..., None, None, None]


def _check_per_example(name: str, numbers: Any, logits_shape: tuple[int, ...]) -> None:
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
        return j - i <= _spread(self._offset)

    def check(self, logits_shape: tuple[int, ...]) -> None:
        if self.offset is None:
            _check_per_example("offset", self.moving, logits_shape)

    def key_range(self, i: Span, length_kv: int) -> Range:
        return clipped(0, i.start + i.size + bounded(self._offset), length_kv)

    def full_range(self, i: Span, length_kv: int) -> Range:
        return clipped(0, i.start + 1 + bounded(self._offset), length_kv)

    @property
    def is_static(self) -> bool:
        return self.offset is not None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlidingWindow(_Positional):
    """i − left ≤ j ≤ i + right; None is unbounded."""

    left: int | None = field(metadata={"static": True})
    right: int | None = field(metadata={"static": True})

    @property
    def _sides(self) -> tuple[int, int]:
        left, right = (FAR if side is None else bounded(side) for side in (self.left, self.right))
        return left, right

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        left, right = self._sides
        return (i - j <= left) & (j - i <= right)

    def key_range(self, i: Span, length_kv: int) -> Range:
        left, right = self._sides
        return clipped(i.start - left, i.start + i.size + right, length_kv)

    def full_range(self, i: Span, length_kv: int) -> Range:
        left, right = self._sides
        return clipped(i.start + i.size - 1 - left, i.start + 1 + right, length_kv)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padding(_Positional):
    """j < lengths[b]."""

    lengths: Any
    _per_example: ClassVar[dict[str, int]] = {"lengths": 0}

    def _rule(self, i: jax.Array, j: jax.Array) -> jax.Array:
        return j < _spread(self.lengths)

    def check(self, logits_shape: tuple[int, ...]) -> None:
        _check_per_example("lengths", self.lengths, logits_shape)
        if not is_traced(self.lengths):
            check_mask_lengths(np.asarray(self.lengths), logits_shape[-1])

    def key_range(self, i: Span, length_kv: int) -> Range:
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
        return (j < _spread(self._n)) | (j <= i)

    def check(self, logits_shape: tuple[int, ...]) -> None:
        if self.n is None:
            _check_per_example("n", self.lengths, logits_shape)

    def key_range(self, i: Span, length_kv: int) -> Range:
        return clipped(0, larger(bounded(self._n), i.start + i.size), length_kv)

    def full_range(self, i: Span, length_kv: int) -> Range:
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

    def to_array(self, length_q: int, length_kv: int, *, batch: tuple[int, ...] = (), num_heads: int = 1) -> jax.Array:
        return jnp.asarray(self.q_ids)[..., None, :, None] == jnp.asarray(self.kv_ids)[..., None, None, :]

    def check(self, logits_shape: tuple[int, ...]) -> None:
        *batch, _, length_q, length_kv = logits_shape
        for name, ids, length in (("q_ids", self.q_ids, length_q), ("kv_ids", self.kv_ids, length_kv)):
            check_integers(name, ids)
            check_segment_ids(name, ids, batch, length)

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return self._queries(i)[:, None] == lax.dynamic_slice_in_dim(self.kv_ids, j.start, j.size)

    def key_range(self, i: Span, length_kv: int) -> Range:
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

    def to_array(self, length_q: int, length_kv: int, *, batch: tuple[int, ...] = (), num_heads: int = 1) -> jax.Array:
        spans = (Span(0, num_heads), Span(0, length_q), Span(0, length_kv))
        if self.example is not None:
            return self.block(*spans)
        each = jax.vmap(lambda b: self.at(b).block(*spans))(jnp.arange(math.prod(batch), dtype=jnp.int32))
        return each.reshape(*batch, *each.shape[1:])

    def at(self, b: Any) -> Mask:
        return FromPredicate(self.fn, self.arrays, jnp.asarray(b, jnp.int32))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return over_block(lambda n, i, j: jnp.asarray(self.fn(self.example, n, i, j, *self.arrays)), n, i, j)
