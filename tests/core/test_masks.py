"""Masks as values: each kind against its rule in plain loops, blocks against the whole, pytrees, errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import masks
from jaxattn.core.mask_base import as_mask
from jaxattn.core.masks import Span

from ..errors import refuses
from ..inputs import B, S, T
from .mask_kinds import (
    ARRAY,
    EVERY,
    KINDS,
    KV_IDS,
    LENGTHS,
    Q_IDS,
    REACH,
    SHAPE,
    WHOLE,
    N,
    by_loops,
    example,
    near,
    whole,
)


@EVERY
def test_the_rule_in_plain_loops(name):
    mask = KINDS[name].mask
    mask.check(SHAPE)
    assert np.array_equal(whole(mask), WHOLE[name])
    for b in range(B):  # the mask of one example has an array too
        assert np.array_equal(whole(example(mask, b), ()), WHOLE[name][b])


@EVERY
def test_a_block_is_a_slice(name):
    mask, rng = KINDS[name].mask, np.random.default_rng(1)

    @jax.jit
    def traced(mask, b, n, i, j):
        return example(mask, b).block(Span(n, 1), Span(i, 2), Span(j, 3))

    for _ in range(6):
        b, n, i, j = (int(rng.integers(0, stop)) for stop in (B, N, T - 1, S - 2))
        expected = WHOLE[name][b, n : n + 1, i : i + 2, j : j + 3]
        for block in (traced(mask, b, n, i, j), example(mask, b).block(Span(n, 1), Span(i, 2), Span(j, 3))):
            assert block.dtype == jnp.bool_
            assert np.array_equal(np.broadcast_to(block, expected.shape), expected)
    block = example(mask, 2).block(Span(0, N), Span(0, T), Span(0, S))
    assert np.array_equal(np.broadcast_to(block, (N, T, S)), WHOLE[name][2])


def test_a_boolean_array_may_stand_on_either_side():
    for mask in (masks.causal() & ARRAY, ARRAY & masks.causal(), jnp.asarray(ARRAY) & masks.causal()):
        assert np.array_equal(whole(mask), ARRAY & WHOLE["causal"])
    assert np.array_equal(whole(ARRAY | masks.causal()), ARRAY | WHOLE["causal"])
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = masks.causal() & None


def test_axes_of_size_one_are_kept():
    shapes = {name: KINDS[name].mask.to_array(T, S, batch=(B,), num_heads=N).shape for name in KINDS}
    assert shapes["causal"] == shapes["window"] == shapes["prefix"] == shapes["array, (T, S)"] == (T, S)
    assert shapes["padding"] == (B, 1, 1, S) and shapes["segments"] == (B, 1, T, S)


def test_leaves_without_batch_axes_are_not_repeated():
    shapes = [leaf.shape for leaf in jax.tree.leaves((masks.padding(5) & ARRAY[0] & ARRAY[:1]).flatten_batch((B,)))]
    assert shapes == [(1,), (1, N, T, S), (1, N, T, S)]


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_other_batch_ranks(batch):
    """Flat index of the example in C order."""
    rng, count = np.random.default_rng(2), int(np.prod(batch))
    lengths, ids = rng.integers(0, S + 1, batch), rng.integers(0, 2, (*batch, T))
    partial = rng.random((*batch[:-1], *(1,) * len(batch[:1]), 1, T, S)) < 0.5  # one batch axis of size 1
    mask = masks.padding(lengths) & masks.segments(ids, np.zeros(S, int)) | masks.from_array(partial)
    mask |= masks.from_predicate(lambda b, n, i, j, skew: (b + i * skew + n) % 5 == 0, 2)
    mask.check((*batch, N, T, S))
    b, n, i, j = np.ogrid[:count, :N, :T, :S]
    flat_lengths, flat_ids = lengths.reshape(-1), ids.reshape(-1, T)
    array = np.broadcast_to(partial, (*batch, 1, T, S)).reshape(count, 1, T, S)
    expected = (j < flat_lengths[b]) & (flat_ids[b, i] == 0) | array | ((b + 2 * i + n) % 5 == 0)
    assert np.array_equal(whole(mask, batch).reshape(expected.shape), expected)
    flat = mask.flatten_batch(batch)
    for one in range(count):
        block = flat.at(one).block(Span(0, N), Span(1, 3), Span(2, 4))
        assert np.array_equal(np.broadcast_to(block, (N, 3, 4)), expected[one, :, 1:4, 2:6])


def test_a_block_costs_a_block():
    """At a length of 10⁵ no array of the program has more elements than the ids, or than a small block."""
    length = 10**5

    def block(array, ids, b, start):
        mask = masks.causal() & masks.padding(9) & masks.segments(ids) & masks.from_array(array)
        mask |= masks.from_predicate(lambda b, n, i, j: ids[b, i] == j)
        return mask.flatten_batch((B,)).at(b).block(Span(0, N), Span(start, 16), Span(start, 32))

    abstract = jax.ShapeDtypeStruct((B, N, length, length), bool), jax.ShapeDtypeStruct((B, length), int)
    program = jax.make_jaxpr(block)(*abstract, 1, 5)
    sizes = [
        var.aval.size
        for eqn in program.eqns
        if eqn.primitive.name not in ("reshape", "squeeze", "broadcast_in_dim")
        or "bool" not in str(eqn.outvars[0].aval)
        for var in eqn.outvars
    ]
    assert max(sizes) <= B * length, sizes


def test_jit_takes_masks_and_new_arrays_cost_no_trace():
    traces = []

    @jax.jit
    def total(mask):
        traces.append(mask)
        return mask.to_array(T, S, batch=(B,), num_heads=N).sum()

    def mask(lengths, offset, reach):
        return masks.causal() & masks.padding(lengths) & ~masks.causal(jnp.asarray(offset)) | masks.from_predicate(
            near, reach
        ) & masks.prefix(2)

    reach = np.array([[1, 3], [0, 2], [5, 1]])
    for lengths, offset, more in (([7, 0, 4], -3, 0), ([1, 2, 3], 1, 1), ([5, 5, 5], 0, 2)):
        one = mask(np.array(lengths), offset, reach + more)
        assert total(one) == one.to_array(T, S, batch=(B,), num_heads=N).sum()
    assert len(traces) == 1
    total(mask(np.array([7, 0, 4]), 0, reach) & masks.causal(1))
    assert len(traces) == 2  # another formula is another trace
    total(mask(np.array([7, 0, 4]), 0, reach) & masks.causal(2))
    assert len(traces) == 3  # and a static integer is part of the formula


@EVERY
def test_masks_are_pytrees(name):
    mask = KINDS[name].mask
    flat, tree = jax.tree.flatten(mask)
    assert np.array_equal(whole(jax.tree.unflatten(tree, flat)), WHOLE[name])
    assert all(isinstance(leaf, np.ndarray | jax.Array) for leaf in flat)
    assert not flat or not name.startswith("window")
    jax.tree.unflatten(tree, [object()] * len(flat))  # JAX does so


def test_vmap_and_scan_over_padding():
    array = jax.vmap(lambda mask: mask.to_array(T, S))(masks.padding(jnp.asarray(LENGTHS)))
    assert np.array_equal(np.broadcast_to(array, (B, 1, T, S)), WHOLE["padding"][:, :1])
    scanned = jax.lax.scan(lambda _, mask: (0, mask.to_array(T, S)), 0, masks.padding(LENGTHS))[1]
    assert np.array_equal(scanned, array)


def test_a_predicate_may_capture_arrays():
    """Values are read when the mask is made: parameters may have changed since the last time."""
    table = {"reach": jnp.asarray([1, 2])}

    def fn(b, n, i, j):
        return abs(i - j) <= table["reach"][n]

    for reach in ([1, 2], [0, 3]):
        table["reach"] = jnp.asarray(reach)
        mask = masks.from_predicate(fn)
        assert len(jax.tree.leaves(mask)) == 1
        assert np.array_equal(whole(mask), by_loops(lambda b, n, i, j, reach=reach: abs(i - j) <= reach[n]))

    @jax.jit
    def inside(reach):  # a captured tracer becomes a leaf as well, an integer one too
        mask = masks.from_predicate(lambda b, n, i, j: abs(i - j) <= reach[n])
        return jax.jit(lambda mask: mask.to_array(T, S, batch=(B,), num_heads=N))(mask)

    assert np.array_equal(inside(jnp.asarray([0, 3])), whole(mask))
    plain = masks.from_predicate(near, REACH + 1)  # nothing captured: the same structure for other arrays
    assert jax.tree.structure(plain) == jax.tree.structure(KINDS["predicate"].mask)


def test_a_predicate_may_compute_with_constants_of_numpy():
    def fn(b, n, i, j):
        return jnp.asarray(ARRAY)[b, n, i, j] & (jnp.asarray(Q_IDS)[b, i] >= 0)

    assert np.array_equal(whole(masks.from_predicate(fn)), ARRAY)
    reach = jnp.asarray(REACH)
    mixed = masks.from_predicate(lambda b, n, i, j: fn(b, n, i, j) & (abs(i - j) <= reach[b, n]))
    assert np.array_equal(whole(mixed), ARRAY & WHOLE["predicate"])
    assert all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(mixed))
    assert masks.from_predicate(fn) == masks.from_predicate(fn)


def test_masks_of_other_code():
    assert as_mask(None) is None
    mask = masks.causal()
    assert as_mask(mask) is mask
    assert np.array_equal(whole(as_mask(ARRAY)), ARRAY) and np.array_equal(whole(as_mask([True] * S)), ARRAY | True)
    with refuses(TypeError, "pass an additive float mask as `bias`"):
        as_mask(np.zeros((T, S), np.float32))


def test_only_public_names_are_public():
    """`jaxtyping` is there while annotations run."""
    assert {name for name in vars(masks) if not name.startswith("_")} - {"jaxtyping"} == set(masks.__all__)
    assert masks.causal() == masks.causal(0) != masks.causal(1) and len({masks.causal(), masks.causal()}) == 1
    assert repr(masks.causal(2) & masks.prefix(3)).startswith("And(first=Causal(offset=2")


@pytest.mark.parametrize("use", [lambda m: m and m, lambda m: m or m, lambda m: not m, lambda m: 1 if m else 0])
def test_a_mask_has_no_truth_value(use):
    with pytest.raises(TypeError, match=r"combined by `&`, `\|` and `~`, got `and`.*write `causal\(\) & "):
        use(masks.causal())


def wrong(value) -> Any:
    """A value whose type no checker looks at."""
    return value


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: masks.causal(1.5), TypeError, "`offset` must be an integer, got 1.5"),
        (lambda: masks.causal(True), TypeError, "`offset` must be an integer, got True"),
        (lambda: masks.causal(np.array(0.5)), TypeError, "`offset` must hold integers, got dtype float64"),
        (lambda: masks.sliding_window(-1, 0), ValueError, r"`left` must be 0 or more or None \(unbounded\), got -1"),
        (lambda: masks.sliding_window(0, -2), ValueError, "`right` must be 0 or more"),
        (
            lambda: masks.sliding_window(wrong(1.0), 0),
            TypeError,
            r"`left` must be an integer or None \(unbounded\), got 1.0",
        ),
        (lambda: masks.prefix(-1), ValueError, "`n` must be 0 or more, got -1"),
        (lambda: masks.prefix(False), TypeError, "`n` must be an integer"),
        (lambda: masks.prefix(np.ones(B)), TypeError, "`n` must hold integers, got dtype float64"),
        (lambda: masks.padding([1.0] * B), TypeError, "`lengths` must hold integers"),
        (lambda: masks.segments(np.ones(T, bool)), TypeError, "`q_ids` must hold integers, got dtype bool"),
        (lambda: masks.segments(Q_IDS, KV_IDS / 2), TypeError, "`kv_ids` must hold integers"),
        (lambda: masks.from_array(ARRAY * 1.0), TypeError, "pass an additive float mask as `bias`"),
        (lambda: masks.from_array(ARRAY * 1), TypeError, "a 0/1 mask as `mask != 0`"),
        (
            lambda: masks.from_predicate(wrong(3)),
            TypeError,
            r"`fn` must be a function fn\(b, n, i, j, \*arrays\), got int",
        ),
        (lambda: masks.from_predicate(lambda b, n, i, j: i - j), TypeError, "one boolean.*got dtype int32"),
        (lambda: masks.from_predicate(lambda b, n, i, j: jnp.ones(3, bool)), TypeError, r"shape \(3,\); return a"),
    ],
)
def test_what_no_mask_can_be_made_of(make, error, sentence):
    with refuses(error, sentence):
        make()


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (masks.padding(LENGTHS[:2]), r"`lengths` must be \[\*B\].* = \(3,\) or \(\), got shape \(2,\)"),
        (masks.padding(LENGTHS[:, None]), r"got shape \(3, 1\)"),
        (masks.padding([7, 8, 0]), "between 0 and the key length S = 7, got values from 0 to 8"),
        (masks.padding([7, -1, 0]), "got values from -1 to 7; they count the keys"),
        (masks.causal(LENGTHS[:2]), r"`offset` must be \[\*B\]"),
        (masks.prefix(LENGTHS[:2]), r"`n` must be \[\*B\]"),
        (
            masks.segments(Q_IDS),
            r"`kv_ids` must be \[\*B, length\] = \(3, 7\) or \(7,\), got shape \(3, 5\); pass both",
        ),
        (masks.segments(KV_IDS), r"`q_ids` must be \[\*B, length\] = \(3, 5\)"),
        (masks.segments(Q_IDS, KV_IDS[:2]), r"`kv_ids` must be .* got shape \(2, 7\)"),
        (masks.from_array(ARRAY[:, 0]), r"`mask` must broadcast from the right to the logits .* = \(3, 2, 5, 7\)"),
        (masks.from_array(ARRAY[None]), "`mask` must broadcast"),
        (masks.causal() | ~(masks.causal() & masks.padding(9)), "key length S = 7, got values from 9 to 9"),
    ],
)
def test_arrays_that_do_not_fit(mask, sentence):
    with refuses(ValueError, sentence):
        mask.check(SHAPE)


def test_lengths_inside_jit_are_checked_where_they_are_known():
    with refuses(ValueError, "got values from 8 to 8"):
        jax.jit(lambda: masks.padding([8] * B).check(SHAPE))()
    jax.jit(lambda lengths: masks.padding(lengths).check(SHAPE))(jnp.full(B, 8))
