"""Ranges of keys against elements, mask by mask and in random combinations: what may be skipped, what needs no mask."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.core import masks
from jaxattn.core.masks import Span

from ..inputs import B, S, T
from .mask_kinds import EVERY, KINDS, WHOLE, example, whole


def assert_ranges_hold(mask, allowed, i, b):
    """`allowed` [N, T, S]: nothing outside of the key range, all inside of the full range, classify agrees."""
    rows = allowed[:, i.start : i.start + i.size]
    lo, hi = map(int, mask.key_range(i, S))
    full_lo, full_hi = map(int, mask.full_range(i, S))
    assert 0 <= lo <= hi <= S and 0 <= full_lo <= full_hi <= S
    assert not rows[..., :lo].any() and not rows[..., hi:].any(), (mask, b, i)
    assert rows[..., full_lo:full_hi].all(), (mask, b, i)
    for start, size in ((0, S), (0, 3), (2, 2), (3, 4), (6, 1)):
        block = rows[..., start : start + size]
        verdict = mask.classify(i, Span(start, size), S)
        assert verdict in ("all", "none", "some") and (mask.is_static or verdict == "some")
        assert verdict != "all" or block.all()
        assert verdict != "none" or not block.any()
    return (lo, hi), (full_lo, full_hi)


@EVERY
def test_ranges(name):
    kind = KINDS[name]
    for b in range(B):
        mask = example(kind.mask, b)
        for i in (Span(start, size) for size in (1, 2, 5) for start in range(T - size + 1)):
            key_range, full_range = assert_ranges_hold(mask, WHOLE[name][b], i, b)
            if kind.tight:
                rows = WHOLE[name][b][:, i.start : i.start + i.size]
                some, every = rows.any((0, 1)), rows.all((0, 1))
                for (lo, hi), keys in ((key_range, some), (full_range, every)):
                    assert np.array_equal(np.flatnonzero(keys), np.arange(lo, hi)), (name, b, i)


@EVERY
def test_ranges_are_integers_or_traced(name):
    """Static masks give Python integers for static spans; a traced start gives the same numbers as int32."""
    mask, i = example(KINDS[name].mask, 0), Span(1, 2)
    for method in (mask.key_range, mask.full_range):
        known = method(i, S)
        if mask.is_static:
            assert [type(bound) for bound in known] == [int, int]
        traced = jax.jit(lambda start, method=method: method(Span(start, 2), S))(1)
        assert tuple(map(int, traced)) == tuple(map(int, known))
        for bound in (*known, *traced):
            assert isinstance(bound, int) or (isinstance(bound, jax.Array) and bound.dtype == jnp.int32)
    assert mask.is_static == (name in STATIC)


STATIC = {
    *(n for n in KINDS if n.startswith(("window", "array", "predicate"))),
    *("causal", "causal, offset", "causal, negative offset", "causal, far offset", "prefix"),
}


def test_segments_sorted_are_skipped_tightly():
    ids = np.array([0, 0, 1, 1, 2, 2, 2])
    mask = masks.segments(ids).flatten_batch(()).at(0)
    assert [tuple(map(int, mask.key_range(Span(i, 2), S))) for i in (0, 1, 2, 5)] == [(0, 2), (0, 4), (2, 4), (4, 7)]
    apart = masks.segments(ids + 9, ids).flatten_batch(()).at(0)
    lo, hi = apart.key_range(Span(0, 2), S)
    assert lo == hi


def test_combinations_skip():
    """The ranges that a kernel lives from, in numbers."""
    i, window = Span(2, 2), masks.sliding_window(1, 1)
    assert window.key_range(i, 8) == (1, 5) and window.full_range(i, 8) == (2, 4)
    assert (masks.causal() & window).key_range(i, 8) == (1, 4)
    assert (masks.causal() & window).full_range(i, 8) == (2, 3)
    assert (masks.prefix(1) | masks.sliding_window(0, 0)).key_range(i, 8) == (0, 4)
    assert (masks.causal() | masks.sliding_window(1, 3)).full_range(i, 8) == (0, 6)
    one = Span(2, 1)  # [2, 3) and [3, 8) touch, [2, 3) and [4, 8) do not
    assert (masks.sliding_window(0, 0) | ~masks.causal()).full_range(one, 8) == (2, 8)
    assert (masks.sliding_window(0, 0) | ~masks.causal(1)).full_range(one, 8) == (4, 8)
    assert (~masks.causal()).key_range(i, 8) == (3, 8) and (~masks.causal()).full_range(i, 8) == (4, 8)
    assert (~window).key_range(i, 8) == (0, 8) and (~window).full_range(i, 8) == (5, 8)
    assert (masks.sliding_window(0, 0) & masks.causal(-5)).key_range(i, 8)[0] == 2
    assert (~window).key_range(i, 5) == (0, 5)  # [2, 4) leaves keys on both sides
    assert (~(masks.sliding_window(0, 0) & masks.causal(-5))).full_range(i, 8) == (0, 8)
    nothing = masks.sliding_window(None, None) & ~masks.sliding_window(None, None)
    assert nothing.classify(i, Span(0, 8), 8) == "none" and (~nothing).classify(i, Span(0, 8), 8) == "all"
    empty_or = masks.causal(-9) | masks.sliding_window(0, 0)  # an empty range adds no keys
    assert empty_or.key_range(i, 8) == (2, 4)


leaves = st.sampled_from(sorted(KINDS)).map(lambda name: (KINDS[name].mask, WHOLE[name]))


def both(combine):
    return lambda pair: (combine(pair[0][0], pair[1][0]), combine(pair[0][1], pair[1][1]))


def combined(inner):
    pairs = st.tuples(inner, inner)
    joined = [pairs.map(both(combine)) for combine in (operator.and_, operator.or_)]
    return st.one_of(*joined, inner.map(lambda one: (~one[0], ~one[1])))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.recursive(leaves, combined, max_leaves=4), st.integers(0, B - 1), st.integers(0, T - 1), st.integers(1, T))
def test_combinations_are_those_of_numpy_and_their_ranges_are_sound(pair, b, start, size):
    mask, expected = pair
    assert np.array_equal(whole(mask), expected)
    assert_ranges_hold(example(mask, b), expected[b], Span(start, min(size, T - start)), b)


def test_decoding_reuses_one_trace():
    traces = []

    @jax.jit
    def row(position):
        traces.append(position)
        mask = masks.causal(position).flatten_batch(()).at(0)
        return mask.to_array(1, S), mask.key_range(Span(0, 1), S)

    for position in range(S):
        array, (lo, hi) = row(position)
        assert np.array_equal(np.asarray(array).reshape(-1), np.arange(S) <= position)
        assert (lo, hi) == (0, position + 1)
    assert len(traces) == 1
