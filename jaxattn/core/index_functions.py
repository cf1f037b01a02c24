"""Functions of positions, fn(…, b, n, i, j, …), written for one element and applied to a block of logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr

from .._typing import Size


class Span(NamedTuple):
    """The positions start, …, start + size − 1: a start that may be traced, a size that is known."""

    start: Any
    size: Size


def positions(span: Span) -> jax.Array:
    """The positions of a span, int32 [size]."""
    return jnp.asarray(span.start, jnp.int32) + jnp.arange(span.size, dtype=jnp.int32)


class _Lifted:
    """A traced function whose captured arrays are its last arguments."""

    def __init__(self, jaxpr: Any, captured: int):
        self.jaxpr = jaxpr
        self.captured = captured

    def __call__(self, *args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        split = len(leaves) - self.captured
        (value,) = eval_jaxpr(self.jaxpr, leaves[split:], *leaves[:split])
        return value


def lift_captured(fn: Callable, *examples: Any) -> tuple[Callable, tuple, jax.ShapeDtypeStruct]:
    """(function, captured, result): function(*examples, *captured) = fn(*examples), with nothing captured any more.

    Every captured JAX array counts, integers and tracers included; `jax.closure_convert` leaves those in that have no
    derivative and remembers the arrays of a function's first call, parameters that have changed since too. A function
    that captures none comes back as it is, so that equal functions share one trace.

    Args:
        fn: a function of one element, which returns one array.
        examples: its arguments, or `jax.ShapeDtypeStruct`s of them.
    """
    fresh = lambda *args: jnp.asarray(fn(*args))  # noqa: E731 — a new object each time: JAX caches traces by function
    traced, result = jax.make_jaxpr(fresh, return_shape=True)(*examples)
    if not any(isinstance(const, jax.Array) for const in traced.consts):
        return fn, (), result
    captured = tuple(c if isinstance(c, jax.Array) else np.asarray(c, c.dtype) for c in traced.consts)
    return _Lifted(traced.jaxpr, len(captured)), captured, result


def with_rank(array: Any, rank: int) -> jax.Array:
    """The array with axes of size 1 in front, `rank` in all: what broadcasting would add by itself."""
    array = jnp.asarray(array)
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def over_block(fn: Callable, n: Span, i: Span, j: Span, *blocks: jax.Array) -> jax.Array:
    """[n, i, j]: fn(n, i, j, *elements) for every element of the block; `blocks` are [n, i, j] too."""
    along = (0,) * len(blocks)
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        fn = jax.vmap(fn, in_axes=axes + along)
    return fn(positions(n), positions(i), positions(j), *blocks)


def window(array: jax.Array, b: Any, n: Span, i: Span, j: Span) -> jax.Array:
    """The part [n, i, j] of an array [B, N, T, S], or 1 in each axis: such an axis keeps its size."""
    starts, sizes = _place(array, b, n, i, j)
    return lax.squeeze(lax.dynamic_slice(array, starts, sizes), (0,))


def add_window(array: jax.Array, block: jax.Array, b: Any, n: Span, i: Span, j: Span) -> jax.Array:
    """`array` with a block, as `window` gives it, added in its place."""
    starts, sizes = _place(array, b, n, i, j)
    changed = lax.dynamic_slice(array, starts, sizes) + block[None].astype(array.dtype)
    return lax.dynamic_update_slice(array, changed, starts)


def _place(array: jax.Array, b: Any, n: Span, i: Span, j: Span) -> tuple[list[jax.Array], list[int]]:
    spans = zip((Span(b, 1), n, i, j), array.shape, strict=True)
    cut = [Span(0, 1) if size == 1 else span for span, size in spans]
    return [jnp.asarray(span.start, jnp.int32) for span in cut], [span.size for span in cut]
