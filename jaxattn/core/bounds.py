"""Masks as bounds, i − left ≤ j ≤ i + right and j < lengths[b]: the form that kernels for one device take."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._typing import Size
from .mask_base import And, FromArray, Mask, Not, Or
from .mask_kinds import Causal, FromPredicate, Padding, Prefix, Segments, SlidingWindow
from .mask_ranges import is_int
from .problem import Problem

#: What a mask is that has no such bounds, as it is asked for.
_OTHERS: dict[type, str] = {
    Causal: "`causal` with an array as offset",
    SlidingWindow: "`sliding_window` with an array as offset",
    Prefix: "`prefix`",
    Segments: "`segments`",
    FromArray: "an array",
    FromPredicate: "`from_predicate`",
    Or: "`|`",
    Not: "`~`",
}


@dataclass(frozen=True)
class Bounds:
    """i − left ≤ j ≤ i + right, where None is unbounded, and j < all `lengths`, arrays [*B] or ().

    A window with an offset has a negative side where it leaves out the key i.
    """

    left: int | None = None
    right: int | None = None
    lengths: tuple[Any, ...] = ()


def bounds_of(mask: Mask | None, length_q: Size, length_kv: Size) -> Bounds | str:
    """The bounds that say exactly what the mask says, those left out that block nothing; else what the mask is."""
    found = _bounds(mask)
    if isinstance(found, str) or not is_int(length_q, length_kv):
        return found
    left = None if found.left is None or found.left >= length_q - 1 else found.left
    right = None if found.right is None or found.right >= length_kv - 1 else found.right
    return Bounds(left, right, found.lengths)


def exact_bounds(problem: Problem) -> Bounds:
    """The bounds of a call's mask.

    Raises:
        NotImplementedError: it has none.
    """
    found = bounds_of(problem.mask, problem.length_q, problem.length_kv)
    if isinstance(found, str):
        raise NotImplementedError(f"`mask` must be bounds and lengths here, got {found}; use another implementation.")
    return found


def _bounds(mask: Mask | None) -> Bounds | str:
    if mask is None:
        return Bounds()
    if isinstance(mask, And):
        first, second = _bounds(mask.first), _bounds(mask.second)
        if isinstance(first, str) or isinstance(second, str):
            return first if isinstance(first, str) else second
        left, right = _least(first.left, second.left), _least(first.right, second.right)
        return Bounds(left, right, first.lengths + second.lengths)
    if isinstance(mask, Causal) and mask.offset is not None:
        return Bounds(right=mask.offset)
    if isinstance(mask, SlidingWindow) and mask.offset is not None:
        left = None if mask.left is None else mask.left - mask.offset
        return Bounds(left, None if mask.right is None else mask.right + mask.offset)
    if isinstance(mask, Padding):
        return Bounds(lengths=(mask.lengths,))
    return _OTHERS.get(type(mask), type(mask).__name__)


def _least(first: int | None, second: int | None) -> int | None:
    return min((side for side in (first, second) if side is not None), default=None)


def may_be_empty(left: int | None, right: int | None, length_q: Size, length_kv: Size) -> bool:
    """Whether static bounds leave some query without a key: the first one, the last one, or all."""
    none = left is not None and right is not None and left + right < 0
    return none or (right is not None and right < 0) or (left is not None and length_q > length_kv + left)


def least_lengths(problem: Problem, bounds: Bounds) -> jax.Array | None:
    """The keys that each example has, int32 [∏ B] in [0, S]; None if no length is given."""
    if not bounds.lengths:
        return None
    examples = math.prod(problem.batch)
    given = (jnp.broadcast_to(jnp.asarray(leaf), problem.batch).reshape(examples) for leaf in bounds.lengths)
    least = jnp.full((examples,), problem.length_kv, jnp.int32)
    for lengths in given:
        least = jnp.minimum(jnp.clip(lengths, 0, problem.length_kv).astype(jnp.int32), least)
    return least


def fill_empty_rows(problem: Problem, output: jax.Array, empty: jax.Array | None) -> jax.Array:
    """The output [*B, T, N, V], that of `empty_row` in the rows without a key: empty [∏ B, T or 1], None for none."""
    if empty is None:
        return output
    filling = jnp.zeros((), problem.dtype)
    if problem.empty_row == "nan":
        filling = jnp.full((), jnp.nan, problem.dtype)
    elif problem.empty_row == "uniform":
        mean = jnp.mean(problem.v.astype(problem.dtype), axis=-3, keepdims=True)  # *B 1 K V
        filling = jnp.repeat(mean, problem.num_heads // problem.kv_heads, axis=-2)
    return jnp.where(empty.reshape(*problem.batch, -1, 1, 1), filling.astype(output.dtype), output)
