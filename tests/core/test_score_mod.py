"""Functions of single logits: against plain loops, block by block, with gradients to every array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.masks import Span
from jaxattn.core.score_mod import ScoreMod, as_score_mod

from ..errors import refuses
from ..inputs import B, S, T, generator

N = 2
RNG = generator("score_mod")
LOGITS = RNG.normal(size=(B, N, T, S)).astype(np.float32)
SLOPES = RNG.normal(size=N).astype(np.float32)
TABLE = RNG.normal(size=(B, T + S)).astype(np.float32)


def shifted(logit, b, n, i, j, slopes, table):
    return logit * 2 + slopes[n] * (j - i) + table[b, i + j]


def by_loops(slopes, table):
    result = np.zeros((B, N, T, S))
    for b in range(B):
        for n in range(N):
            for i in range(T):
                for j in range(S):
                    result[b, n, i, j] = LOGITS[b, n, i, j] * 2 + slopes[n] * (j - i) + table[b, i + j]
    return result


def made(score_mod, dtype=jnp.float32) -> ScoreMod:
    result = as_score_mod(score_mod, dtype)
    assert result is not None
    return result


def block(mod: ScoreMod, b, n, i, j):
    part = LOGITS[b, n.start : n.start + n.size, i.start : i.start + i.size, j.start : j.start + j.size]
    return mod.apply(jnp.asarray(part), b, n, i, j)


FORMS = {
    "pair": lambda slopes, table: (shifted, (slopes, table)),
    "captured": lambda slopes, table: lambda logit, b, n, i, j: shifted(logit, b, n, i, j, slopes, table),
    "both": lambda slopes, table: (
        lambda logit, b, n, i, j, table: shifted(logit, b, n, i, j, slopes, table),
        (table,),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_plain_loops_block_by_block(form):
    mod, expected = made(FORMS[form](jnp.asarray(SLOPES), jnp.asarray(TABLE))), by_loops(SLOPES, TABLE)
    assert {leaf.shape for leaf in jax.tree.leaves(mod)} == {SLOPES.shape, TABLE.shape}
    for b in range(B):
        result = block(mod, b, Span(0, N), Span(0, T), Span(0, S))
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected[b], rtol=1e-5, atol=1e-5)
    result = block(mod, 2, Span(1, 1), Span(2, 3), Span(3, 2))
    np.testing.assert_allclose(result, expected[2, 1:2, 2:5, 3:5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_positions_may_be_traced_and_the_mod_is_a_pytree(form):
    mod, expected = made(FORMS[form](jnp.asarray(SLOPES), jnp.asarray(TABLE))), by_loops(SLOPES, TABLE)

    @jax.jit
    def traced(mod, logits, b, n, i, j):
        return mod.apply(logits, b, Span(n, 1), Span(i, 2), Span(j, 3))

    for b, n, i, j in ((0, 0, 0, 0), (2, 1, 3, 4), (1, 0, 2, 1)):
        result = traced(mod, LOGITS[b, n : n + 1, i : i + 2, j : j + 3], b, n, i, j)
        np.testing.assert_allclose(result, expected[b, n : n + 1, i : i + 2, j : j + 3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_reach_every_array(form, transform):
    """d/d slopes[n] Σ = Σ (j − i); d/d table[b, d] Σ = the number of elements with i + j = d; captured tracers too."""

    def loss(slopes, table):
        return block(made(FORMS[form](slopes, table)), 1, Span(0, N), Span(0, T), Span(0, S)).sum()

    grads = transform(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(SLOPES), jnp.asarray(TABLE))
    i, j = np.indices((T, S))
    np.testing.assert_allclose(grads[0], np.full(N, (j - i).sum()), rtol=1e-5)
    expected = np.zeros_like(TABLE)
    np.add.at(expected[1], i + j, N)
    np.testing.assert_allclose(grads[1], expected, rtol=1e-5)


def test_a_captured_array_is_read_anew_each_time():
    """As a module's parameters are between two steps, with the function the same object."""
    held = {"slope": jnp.float32(1.0)}

    def fn(logit, b, n, i, j):
        return logit * held["slope"]

    for slope in (1.0, 3.0):
        held["slope"] = jnp.float32(slope)
        result = block(made(fn), 0, Span(0, N), Span(0, T), Span(0, S))
        np.testing.assert_allclose(result, LOGITS[0] * slope, rtol=1e-6)


def test_new_arrays_cost_no_trace():
    traces = []

    @jax.jit
    def total(mod):
        traces.append(mod)
        return block(mod, 0, Span(0, N), Span(0, T), Span(0, S)).sum()

    for factor in (1, 2):
        total(made((shifted, (SLOPES * factor, TABLE))))
        total(made(tanh_capped))
        total(made(tanh_capped, jnp.bfloat16))  # captures nothing, so one function serves every dtype
    assert len(traces) == 2


def tanh_capped(logit, b, n, i, j):
    return 5 * jnp.tanh(logit / 5)


def test_the_result_keeps_the_dtype_of_the_logits():
    with jax.enable_x64(True):
        for dtype, other in ((jnp.float32, jnp.float64), (jnp.float64, jnp.float32)):
            table = jnp.asarray(TABLE, other)
            mod = made(lambda logit, b, n, i, j, table=table: logit + table[b, i + j], dtype)
            logits = jnp.asarray(LOGITS[1], dtype)
            result = mod.apply(logits, 1, Span(0, N), Span(0, T), Span(0, S))
            i, j = np.indices((T, S))
            assert result.dtype == dtype
            np.testing.assert_allclose(result, LOGITS[1] + TABLE[1, i + j], rtol=1e-5, atol=1e-6)


def test_none_and_what_is_made_already():
    assert as_score_mod(None) is None
    mod = made(tanh_capped)
    assert as_score_mod(mod) is mod


@pytest.mark.parametrize(
    ("score_mod", "error", "sentence"),
    [
        (3, TypeError, r"`score_mod` must be a function fn\(logit, b, n, i, j\) or a pair \(fn, arrays\), got int"),
        ((tanh_capped, (), ()), TypeError, "got tuple"),
        (
            lambda logit, b, n, i, j: i >= j,
            TypeError,
            "floating-point logit, got dtype bool; pass a condition as `mask`",
        ),
        (lambda logit, b, n, i, j: i - j, TypeError, "got dtype int32"),
        ((lambda logit, b, n, i, j, t: logit + t, (SLOPES,)), ValueError, r"one number .* got shape \(2,\); index"),
    ],
)
def test_what_is_no_score_mod(score_mod, error, sentence):
    with refuses(error, sentence):
        as_score_mod(score_mod)
