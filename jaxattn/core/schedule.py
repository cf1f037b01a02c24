"""In which order blocks of the logits are visited, and which of them are not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._checks import check_whole
from .index_functions import Span
from .mask_base import Mask
from .mask_ranges import Range, is_int, larger, smaller

#: Keys that one step with a mask may take along, rather than being a step of their own without one.
_WORTH_A_STEP = 512
#: Where a range of keys begins and ends, so that the products have sizes that vectorise.
_ALIGNED = 64
#: Chunks of keys that are unrolled.
_UNROLLED_KEYS = 4


@dataclass(frozen=True)
class Schedule:
    """Sizes of the blocks.

    Attributes:
        heads: key/value heads that are computed at the same time.
        queries: query positions of one block.
        keys: key positions of one block.
        unrolled: most blocks of queries that are unrolled at trace time; more become a loop.

    Raises:
        ValueError: a block without a position, fewer than 0 unrolled.
    """

    heads: int
    queries: int
    keys: int
    unrolled: int

    def __post_init__(self):
        for name, least in (("heads", 1), ("queries", 1), ("keys", 1), ("unrolled", 0)):
            check_whole(name, getattr(self, name), least=least)


def over_heads(step: Callable, carry: Any, inputs: Any, heads: int) -> tuple[Any, Any]:
    """(carry, outputs) of step(carry, input) for each entry of axis 0; `heads` at once if nothing is carried."""
    if jax.tree.leaves(carry):
        return lax.scan(step, carry, inputs)

    def alone(entry):
        return step(carry, entry)[1]

    count = jax.tree.leaves(inputs)[0].shape[0]
    if not is_int(count):  # a symbolic number can't be divided into batches
        return carry, lax.map(alone, inputs)
    if heads >= count:
        return carry, jax.vmap(alone)(inputs)
    return carry, lax.map(alone, inputs, batch_size=heads if heads > 1 else None)


def over_queries(schedule: Schedule, mask: Mask | None, length: int, carry: Any, step: Callable) -> Any:
    """carry = step(carry, i, first) for each block of queries i; queries before `first` were in an earlier block.

    All blocks have the same size in a loop, so the last one may overlap the one before it; unrolled blocks do not.
    """
    size = min(schedule.queries, length)
    count = -(-length // size)
    if count <= schedule.unrolled and (mask is None or mask.is_static):
        for start in range(0, length, size):
            carry = step(carry, Span(start, min(size, length - start)), None)
        return carry
    if count == 1:
        return step(carry, Span(0, length), None)

    def one(number, carry):
        return step(carry, Span(jnp.minimum(number * size, length - size), size), number * size)

    return lax.fori_loop(0, count, one, carry)


def over_keys(schedule: Schedule, mask: Mask | None, i: Span, length: int, carry: Any, step: Callable) -> Any:
    """carry = step(carry, j, first, masked) for the blocks of keys j that some query of `i` may attend to.

    Where the first block is known at trace time, its step gets None instead of the carry that there is at the start.
    `masked` says whether the mask must be looked at within the block; keys before `first` were in an earlier one, None
    if there are none. The blocks that are left out have no influence.
    """
    keys = (0, length) if mask is None else mask.key_range(i, length)
    full = (0, length) if mask is None else mask.full_range(i, length)
    if is_int(*keys, *full):
        pieces = _pieces(keys, full, length)
        if all(hi - lo <= _UNROLLED_KEYS * schedule.keys for lo, hi, _ in pieces):
            state = None
            for lo, hi, masked in pieces:
                for start in range(lo, hi, schedule.keys):
                    state = step(state, Span(start, min(schedule.keys, hi - start)), None, masked)
            return carry if state is None else state
    size = min(schedule.keys, length)

    def one(masked, number, carry):
        j = Span(jnp.minimum(number * size, length - size), size)
        return step(carry, j, number * size if masked and length % size else None, masked)

    for lo, hi, masked in _loops(keys, full, size, length):
        if not is_int(lo, hi) or lo < hi:
            carry = lax.fori_loop(lo, hi, lambda number, carry, masked=masked: one(masked, number, carry), carry)
    return carry


def _pieces(keys: Range, full: Range, length: int) -> list[tuple[int, int, bool]]:
    """[(lo, hi, masked)], aligned, without empty ones."""
    lo, hi = keys[0] // _ALIGNED * _ALIGNED, min(-(-keys[1] // _ALIGNED) * _ALIGNED, length)
    if keys[0] >= keys[1]:
        return []
    if full[0] <= keys[0] and full[1] >= keys[1]:
        return [(*keys, False)]
    inner = -(-full[0] // _ALIGNED) * _ALIGNED, full[1] // _ALIGNED * _ALIGNED
    if inner[1] - inner[0] < _WORTH_A_STEP:
        return [(lo, hi, True)]
    pieces = [(lo, inner[0], True), (*inner, False), (inner[1], hi, True)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def _loops(keys: Range, full: Range, size: int, length: int) -> list[tuple[Any, Any, bool]]:
    """[(first block, end block, masked)]: what the mask cuts, what it leaves whole, what it cuts."""
    lo, hi = keys[0] // size, -(-keys[1] // size)
    if is_int(*full) and full[0] >= full[1]:
        return [(lo, hi, True)]
    inner_lo = smaller(larger(-(-full[0] // size), lo), hi)
    whole = length // size  # an overlapping last block is cut
    inner_hi = larger(smaller(smaller(full[1] // size, hi), whole), inner_lo)
    return [(lo, inner_lo, True), (inner_lo, inner_hi, False), (inner_hi, hi, True)]
