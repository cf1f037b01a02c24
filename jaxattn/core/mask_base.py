"""What every mask can do, masks made of masks, and masks given as arrays."""

import dataclasses
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._checks import check_broadcasts, check_mask_dtype
from .._typing import Size
from .index_functions import Span, window, with_rank
from .mask_arrays import from_causal_bias, is_traced
from .mask_ranges import Range, clipped, hull, intersection, is_int, left_of_hull, longest_left, within_either


@dataclass(frozen=True)
class Mask:
    """Which query i of example b and head n may attend to which key j, as a value: True = may attend.

    A pytree: arrays are leaves, Python integers are static. Combine masks, or a mask and a boolean array, with
    `&`, `|` and `~`. The methods from `block` on are for one example, `mask.flatten_batch(batch).at(b)`.
    """

    #: Leaves with batch axes in front, and the rank of what follows them.
    _per_example: ClassVar[dict[str, int]] = {}
    __array_ufunc__: ClassVar[None] = None  # NumPy leaves `array & mask` to us

    def __bool__(self) -> bool:
        raise TypeError(
            "A mask must be combined by `&`, `|` and `~`, got `and`, `or`, `not` or `if`, which ask for one truth "
            "value; write `causal() & padding(lengths)`, and `mask is None` to ask whether there is one."
        )

    def __and__(self, other: Any) -> "Mask":
        return NotImplemented if other is None else And(self, as_mask(other))

    def __or__(self, other: Any) -> "Mask":
        return NotImplemented if other is None else Or(self, as_mask(other))

    def __invert__(self) -> "Mask":
        return Not(self)

    __rand__ = __and__
    __ror__ = __or__

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        """The mask as a boolean array, broadcastable to [*B, N, T, S]; axes it does not depend on may have size 1.

        Args:
            length_q: T.
            length_kv: S.
            batch: *B, the sizes of the batch axes.
            num_heads: N.
        """
        raise NotImplementedError

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        """Raises ValueError or TypeError where the arrays of the mask do not fit logits [*B, N, T, S]."""

    def flatten_batch(self, batch: tuple[Size, ...]) -> "Mask":
        """The same mask with its batch axes made one, of size ∏ batch, or 1 where it has none.

        Leaves with some batch axes of size 1 and some not are broadcast, all others only reshaped.
        """
        return self._replace_leaves(lambda leaf, rank: _flatten_leaf(leaf, rank, batch))

    def at(self, b: Any) -> "Mask":
        """The mask of the example b, an integer that may be traced; only after `flatten_batch`."""
        return self._replace_leaves(
            lambda leaf, _: leaf[0] if leaf.shape[0] == 1 else lax.dynamic_index_in_dim(leaf, b, keepdims=False)
        )

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        """Boolean, broadcastable to [n.size, i.size, j.size]: the mask on query heads n, queries i, keys j.

        The spans must lie within the lengths. The cost is that of the block, not of T × S.
        """
        raise NotImplementedError

    def key_range(self, i: Span, length_kv: Size) -> Range:
        """(lo, hi): keys outside of [lo, hi) are blocked for all queries of the span and all heads.

        Python integers if the start of the span and all parameters of the mask are, else int32 arrays;
        0 ≤ lo ≤ hi ≤ S.
        """
        return clipped(0, length_kv, length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        """(lo, hi): keys inside of [lo, hi) are open to all queries of the span and all heads.

        Integers or arrays as for `key_range`; the integers (0, 0) where nothing is known.
        """
        return clipped(0, 0, length_kv)

    def classify(self, i: Span, j: Span, length_kv: Size) -> str:
        """ "all" or "none" if the whole block may or may not attend, else "some", also wherever a bound is traced."""
        lo, hi = self.key_range(i, length_kv)
        full_lo, full_hi = self.full_range(i, length_kv)
        if not is_int(lo, hi, full_lo, full_hi, j.start):
            return "some"
        if j.start >= hi or j.start + j.size <= lo:
            return "none"
        return "all" if full_lo <= j.start and j.start + j.size <= full_hi else "some"

    @property
    def is_static(self) -> bool:
        """Whether the ranges are Python integers for spans that start at one."""
        return True

    def _replace_leaves(self, change: Callable) -> "Mask":
        leaves = {name: (getattr(self, name), rank) for name, rank in self._per_example.items()}
        changed = {name: change(jnp.asarray(leaf), r) for name, (leaf, r) in leaves.items() if leaf is not None}
        return dataclasses.replace(self, **changed)


def _flatten_leaf(leaf: jax.Array, rank: int, batch: tuple[Size, ...]) -> jax.Array:
    """[*B, …] with `rank` axes after the batch as [∏ B, …], or [1, …] where the batch axes are missing or 1."""
    lead, rest = leaf.shape[: max(leaf.ndim - rank, 0)], leaf.shape[max(leaf.ndim - rank, 0) :]
    rest = (1,) * (rank - len(rest)) + rest
    if math.prod(lead) == 1:
        return leaf.reshape(1, *rest)
    return jnp.broadcast_to(leaf, (*batch, *rest)).reshape(math.prod(batch), *rest)


class _Combination(Mask):
    """A mask made of masks: each of its fields is one."""

    def _combine(self, *arrays: jax.Array) -> jax.Array:
        raise NotImplementedError

    @property
    def _parts(self) -> tuple[Mask, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        arrays = [part.to_array(length_q, length_kv, batch=batch, num_heads=num_heads) for part in self._parts]
        return self._combined(arrays)

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        for part in self._parts:
            part.check(logits_shape)

    def flatten_batch(self, batch: tuple[Size, ...]) -> Mask:
        return type(self)(*(part.flatten_batch(batch) for part in self._parts))

    def at(self, b: Any) -> Mask:
        return type(self)(*(part.at(b) for part in self._parts))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return self._combined([part.block(n, i, j) for part in self._parts])

    def _combined(self, arrays: list[jax.Array]) -> jax.Array:
        rank = max(array.ndim for array in arrays)
        return self._combine(*(with_rank(array, rank) for array in arrays))

    @property
    def is_static(self) -> bool:
        return all(part.is_static for part in self._parts)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class And(_Combination):
    """Where both masks let attend."""

    first: Any
    second: Any

    def _combine(self, *arrays: jax.Array) -> jax.Array:
        return operator.and_(*arrays)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return intersection(self.first.key_range(i, length_kv), self.second.key_range(i, length_kv), length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        return intersection(self.first.full_range(i, length_kv), self.second.full_range(i, length_kv), length_kv)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Or(_Combination):
    """Where either mask lets attend."""

    first: Any
    second: Any

    def _combine(self, *arrays: jax.Array) -> jax.Array:
        return operator.or_(*arrays)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return hull(self.first.key_range(i, length_kv), self.second.key_range(i, length_kv), length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        return within_either(self.first.full_range(i, length_kv), self.second.full_range(i, length_kv), length_kv)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Not(_Combination):
    """Where the mask does not let attend."""

    mask: Any

    def _combine(self, *arrays: jax.Array) -> jax.Array:
        return operator.invert(*arrays)

    def key_range(self, i: Span, length_kv: Size) -> Range:
        return left_of_hull(self.mask.full_range(i, length_kv), length_kv)

    def full_range(self, i: Span, length_kv: Size) -> Range:
        return longest_left(self.mask.key_range(i, length_kv), length_kv)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FromArray(Mask):
    """A boolean array, broadcastable to [*B, N, T, S]; `example` is b once it is known.

    `at` only notes b, so that `block` cuts its part out of the whole: no array of one example comes into being.
    """

    array: Any
    example: Any = None
    _per_example: ClassVar[dict[str, int]] = {"array": 3}

    def to_array(
        self, length_q: Size, length_kv: Size, *, batch: tuple[Size, ...] = (), num_heads: int = 1
    ) -> jax.Array:
        return (
            jnp.asarray(self.array) if self.example is None else lax.dynamic_index_in_dim(self.array, self.example)[0]
        )

    def check(self, logits_shape: tuple[Size, ...]) -> None:
        check_broadcasts("mask", self.array, logits_shape)

    def at(self, b: Any) -> Mask:
        return FromArray(self.array, jnp.asarray(0 if self.array.shape[0] == 1 else b, jnp.int32))

    def block(self, n: Span, i: Span, j: Span) -> jax.Array:
        return window(self.array, self.example, n, i, j)


def as_leaf(values: Any) -> jax.Array | np.ndarray:
    """An array as it is, anything else in NumPy if its values are known: JAX would trace it inside jit."""
    if isinstance(values, jax.Array | np.ndarray):
        return values
    values = from_causal_bias(values)
    return jnp.asarray(values) if any(map(is_traced, jax.tree.leaves(values))) else np.asarray(values)


def as_mask(mask: Any) -> Mask | None:
    """A mask as it is, a boolean array as `from_array` makes it, None as None.

    Raises:
        TypeError: an array that is not boolean.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    array = as_leaf(mask)
    check_mask_dtype(array)
    return FromArray(array)
