"""The blockwise implementation against the dense one: values, statistics, gradients, dtypes and dropout."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import masks
from jaxattn.core.blockwise import blockwise_attention
from jaxattn.core.dense import dense_attention
from jaxattn.core.dropout import draw_attention_keep_mask
from jaxattn.core.problem import Problem
from jaxattn.core.schedule import Schedule
from jaxattn.parity.quick import quickly

from ..inputs import generator
from ..tolerances import FLOAT64
from .drawing import DRAWINGS, B, H, K, N, S, T, V, difference, problem_of, results_and_gradients, smooth_parts

#: (forward, backward): heads at once, queries, keys, most blocks that are unrolled.
SCHEDULES = {
    "looped": (Schedule(1, 5, 3, 0), Schedule(1, 4, 4, 0)),
    "unrolled": (Schedule(3, 6, 4, 9), Schedule(1, 5, 3, 9)),
    "ones": (Schedule(1, 1, 1, 0), Schedule(1, 1, 1, 0)),
    "beyond": (Schedule(8, 64, 64, 4), Schedule(2, 64, 64, 4)),
    "mixed": (Schedule(2, 13, 4, 4), Schedule(2, 3, 11, 0)),
}
#: The schedule that each structure is tried with.
CHOSEN = {
    "everything": "looped",
    "nothing": "unrolled",
    "padding": "ones",
    "drawn dropout": "mixed",
    "given dropout": "looped",
    "predicate": "beyond",
    "band": "mixed",
    "multi-query": "mixed",
    "static masks": "looped",
}
EXAMPLES = 34


def compiled(attention: Any):
    return quickly(partial(results_and_gradients, attention))


def blockwise(*sizes: Schedule):
    return partial(blockwise_attention, sizes=(sizes[0], sizes[-1]))


def finite_where(reference: Any, got: Any) -> Any:
    """`got`, and NaN where the reference's gradient is not finite: through a row of NaN there is none."""
    return jax.tree.map(lambda ours, theirs: np.where(np.isfinite(theirs), ours, theirs), got, reference)


@pytest.mark.parametrize("name", DRAWINGS)
def test_values_statistics_and_gradients_are_those_of_dense(name):
    rng, drawing = generator(f"blockwise {name}"), DRAWINGS[name]
    with jax.enable_x64(True):
        dense, engine = compiled(dense_attention), compiled(blockwise(*SCHEDULES[CHOSEN[name]]))
        for example in range(EXAMPLES):
            problem = problem_of(drawing, rng)
            shapes = ((B, T, N, V), (B, N, T), (B, N, T))
            cotangents = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
            results, gradients = dense(problem, cotangents)
            ours, slopes = engine(problem, cotangents)
            if problem.empty_row == "nan":
                slopes = finite_where(gradients, slopes)
            assert difference(ours, results) <= FLOAT64, example
            assert difference(slopes, gradients) <= FLOAT64, example


STATIC = {
    "causal": (masks.causal(600), Schedule(1, 11, 512, 3)),
    "window": (masks.sliding_window(560, 90), Schedule(1, 8, 100, 0)),
    "causal, padded": (masks.causal(1100) & ~masks.sliding_window(None, 500), Schedule(1, 29, 400, 1)),
    "empty rows": (masks.causal(-9) | masks.from_predicate(lambda b, n, i, j: (i > 17) & (j > 650)), None),
}


@pytest.mark.parametrize("name", STATIC)
def test_long_ranges_of_keys_that_are_cut_in_pieces(name):
    """Where a static mask leaves 512 keys and more whole, they are steps of their own without a mask."""
    rng, length_q, length_kv = generator("pieces"), 29, 1301
    mask, sizes = STATIC[name]
    with jax.enable_x64(True):
        q, k, v = (rng.normal(size=shape) for shape in ((length_q, 2, H), (length_kv, 1, H), (length_kv, 1, V)))
        problem = jax.tree.map(jnp.asarray, Problem(q, k, v, 0.5, mask=mask))
        cotangents = tuple(jnp.asarray(rng.normal(size=s)) for s in ((length_q, 2, V), (2, length_q), (2, length_q)))
        expected = compiled(dense_attention)(problem, cotangents)
        ours = compiled(blockwise(sizes) if sizes else blockwise_attention)(problem, cotangents)
        assert difference(ours, expected) <= FLOAT64


@pytest.mark.parametrize(("length_q", "length_kv"), [(1, 7), (5, 1)])
def test_one_query_and_one_key(length_q, length_kv):
    rng = generator("single")
    with jax.enable_x64(True):
        shapes = ((length_q, N, H), (length_kv, K, H), (length_kv, K, V))
        q, k, v = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
        problem = Problem(q, k, v, 0.3, mask=masks.padding(jnp.asarray(length_kv - 1)))
        ours = quickly(blockwise(*SCHEDULES["looped"]))(problem)
        assert difference(ours[:3], quickly(dense_attention)(problem)[:3]) <= FLOAT64


@partial(jax.jit, static_argnums=0)
def causal_and_pulled(attention, inputs, cotangent):
    result, pull = jax.vjp(lambda q, k, v: attention(Problem(q, k, v, 0.4, mask=masks.causal())).output, *inputs)
    return result, *pull(cotangent)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_errors_are_like_those_of_dense(dtype):
    """Of the output at most twice dense's, of gradients by the criterion of parity."""
    rng, length = generator(f"rounding {dtype}"), 97
    shapes = ((B, length, N, H), (B, length, K, H), (B, length, K, V), (B, length, N, V))
    *inputs, cotangent = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    engine = blockwise(Schedule(1, 32, 16, 0), Schedule(2, 16, 32, 0))
    ours, theirs = (causal_and_pulled(attention, inputs, cotangent) for attention in (engine, dense_attention))
    assert all(array.dtype == jnp.dtype(dtype) for array in ours)
    with jax.enable_x64(True):
        exactly = jax.tree.map(lambda array: array.astype(jnp.float64), (inputs, cotangent))
        truth = causal_and_pulled(dense_attention, *exactly)
    for number, arrays in enumerate(zip(ours, theirs, truth, strict=True)):
        got, reference, exact = (np.asarray(array, np.float64) for array in arrays)
        unit = float(jnp.finfo(dtype).eps) * max(1.0, np.abs(exact).max())
        factor, units = (2, 1) if number == 0 else (4, 2)
        assert np.abs(got - exact).max() <= factor * np.abs(reference - exact).max() + units * unit


def kept_by(attention, rng: jax.Array, rate: float) -> np.ndarray:
    """[B, N, T, S]: equal logits and the unit matrix for values give the dropped weights themselves."""
    eye = jnp.broadcast_to(jnp.eye(S)[:, None, :], (B, S, K, S))
    zeros = jnp.zeros((B, S, K, H))
    problem = Problem(jnp.zeros((B, T, N, H)), zeros, eye, 1.0, dropout_rng=rng, dropout_rate=rate)
    return np.moveaxis(np.asarray(quickly(attention)(problem).output), 1, 2) > 0


def test_what_dropout_keeps_does_not_depend_on_blocks():
    expected = np.asarray(draw_attention_keep_mask(jax.random.key(3), 0.3, (B, N, T, S)))
    for attention in (dense_attention, *(blockwise(*SCHEDULES[name]) for name in ("looped", "beyond"))):
        assert np.array_equal(kept_by(attention, jax.random.key(3), 0.3), expected)
    assert not np.array_equal(kept_by(dense_attention, jax.random.key(4), 0.3), expected)


def test_the_share_that_dropout_keeps():
    """Each map, each row and each column is a binomial sample, and no two maps agree more than by chance."""
    size = 96
    for rate in (0.1, 0.5, 0.9):
        keep = np.asarray(draw_attention_keep_mask(jax.random.key(7), rate, (2, 3, size, size)))
        for axes in ((0, 1, 2, 3), (2, 3), (0, 1, 2), (0, 1, 3)):
            shares = keep.mean(axes)
            count = keep.size // shares.size
            assert np.abs(shares - (1 - rate)).max() <= 5 * np.sqrt(rate * (1 - rate) / count)
        maps = keep.reshape(-1, size * size)
        chance = rate**2 + (1 - rate) ** 2
        agree = [np.mean(one == other) for number, one in enumerate(maps) for other in maps[:number]]
        assert np.abs(np.array(agree) - chance).max() <= 5 * np.sqrt(chance * (1 - chance) / size**2)
        shifted = np.mean(keep[..., 1:, :] == keep[..., :-1, :])
        assert abs(shifted - chance) <= 5 * np.sqrt(chance * (1 - chance) / keep.size)


def test_a_blocked_key_has_no_influence_even_as_nan():
    problem = replace(problem_of(DRAWINGS["padding"], generator("poison")), mask=masks.padding(jnp.array([5, S])))
    parts, again = smooth_parts(problem)
    bad = {name: np.array(part) for name, part in parts.items() if part is not None}
    bad["k"][0, 5:] = np.nan
    attention = quickly(blockwise(*SCHEDULES["looped"]))
    assert difference(attention(again({**parts, **bad}))[:3], attention(problem)[:3]) == 0.0


@pytest.mark.parametrize("name", ["heads", "queries", "keys"])
@pytest.mark.parametrize("size", [0, -3])
def test_a_block_without_a_position_is_refused(name, size):
    with pytest.raises(ValueError, match=f"`{name}` must be 1 or more, got {size}"):
        Schedule(**{"heads": 1, "queries": 4, "keys": 4, "unrolled": 4, name: size})


def test_a_bias_blocks_by_minus_infinity_and_passes_nan_on():
    """Row 0 is blocked entirely, row 1 holds a NaN, row 2 lets one key be seen."""
    length = 128  # as long as what XLA fuses
    q = jnp.ones((length, 2, 4))
    bias = np.zeros((length, length), np.float32)
    bias[0], bias[1, 5], bias[2, 1:] = -np.inf, np.nan, -np.inf
    result = jax.jit(blockwise_attention)(Problem(q, q, jnp.arange(1.0, length + 1)[:, None, None] * q, 0.5, bias=bias))
    output = np.asarray(result.output)
    assert not output[0].any() and np.isnan(output[1]).all() and (output[2] == 1.0).all()
    assert np.isfinite(output[3:]).all() and (np.asarray(result.row_sum)[:, 0] == 0.0).all()
