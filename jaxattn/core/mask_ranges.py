"""Ranges [lo, hi) of keys: Python integers where everything in them is known at trace time, else int32 arrays."""

from typing import Any

import jax.numpy as jnp

from .._typing import Size

Range = tuple[Any, Any]
#: Beyond any length: positions plus an offset of this size stay within int32.
FAR = 2**30


def is_int(*values: Any) -> bool:
    """Whether all values are Python integers."""
    return all(isinstance(value, int) for value in values)


def bounded(value: Any) -> Any:
    """An integer cut to ±2³⁰, exact for comparisons with positions; arrays as int32."""
    if is_int(value):
        return max(-FAR, min(value, FAR))
    return jnp.clip(jnp.asarray(value).astype(jnp.int32), -FAR, FAR)


def larger(first: Any, second: Any) -> Any:
    return max(first, second) if is_int(first, second) else jnp.maximum(first, second)


def smaller(first: Any, second: Any) -> Any:
    return min(first, second) if is_int(first, second) else jnp.minimum(first, second)


def pick(condition: Any, first: Range, second: Range) -> Range:
    """`first` where the condition holds, else `second`."""
    if isinstance(condition, bool):
        return first if condition else second
    return jnp.where(condition, first[0], second[0]), jnp.where(condition, first[1], second[1])


def clipped(lo: Any, hi: Any, length: Size) -> Range:
    """[lo, hi) cut to [0, length); empty, with lo = hi, where lo ≥ hi."""
    lo = smaller(larger(lo, 0), length)
    hi = larger(smaller(hi, length), lo)
    return (lo, hi) if is_int(lo, hi) else (jnp.asarray(lo, jnp.int32), jnp.asarray(hi, jnp.int32))


def longer(first: Range, second: Range) -> Range:
    return pick(first[1] - first[0] >= second[1] - second[0], first, second)


def intersection(first: Range, second: Range, length: Size) -> Range:
    return clipped(larger(first[0], second[0]), smaller(first[1], second[1]), length)


def hull(first: Range, second: Range, length: Size) -> Range:
    """The least range that holds both; an empty one adds nothing."""
    both = (smaller(first[0], second[0]), larger(first[1], second[1]))
    lo, hi = pick(first[0] == first[1], second, pick(second[0] == second[1], first, both))
    return clipped(lo, hi, length)


def within_either(first: Range, second: Range, length: Size) -> Range:
    """The longest range known to lie in the union: both where they touch, else the longer one."""
    touch = larger(first[0], second[0]) <= smaller(first[1], second[1])
    both = (smaller(first[0], second[0]), larger(first[1], second[1]))
    return clipped(*pick(touch, both, longer(first, second)), length)


def left_of_hull(inner: Range, length: Size) -> Range:
    """The hull of what `inner` leaves of [0, length): smaller only where `inner` touches an end."""
    lo, hi = inner
    return clipped(*pick(lo <= 0, (hi, length), pick(hi >= length, (0, lo), (0, length))), length)


def longest_left(outer: Range, length: Size) -> Range:
    """The longest range that `outer` leaves of [0, length)."""
    lo, hi = outer
    return clipped(*pick(lo == hi, (0, length), longer((0, lo), (hi, length))), length)
