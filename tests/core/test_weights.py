"""Weights and statistics beside the output: the same of every implementation, with their right derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import dot_product_attention, masks
from jaxattn.core.dot_product import dot_product_attention_stats
from jaxattn.core.record import listening
from jaxattn.core.schedule import Schedule
from jaxattn.parity.quick import quickly

from ..errors import refuses
from ..inputs import generator
from ..tolerances import FLOAT64
from .drawing import difference

B, T, S, N, K, H, V = 2, 5, 7, 4, 2, 3, 2
GRADIENTS = 1e-11
RNG = generator("weights and statistics")
Q, KEYS, VALUES = (RNG.normal(size=shape) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, V)))
BIAS = np.where(RNG.random((N, T, S)) < 0.2, -np.inf, RNG.normal(size=(N, T, S)))
BIAS[:, 2] = -np.inf
LENGTHS = np.array([3, S])
COTANGENT = RNG.normal(size=(B, N, T, S))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    sizes = (Schedule(1, 3, 4, 0), Schedule(1, 2, 3, 0))
    monkeypatch.setattr("jaxattn.core.blockwise.schedules", lambda problem: sizes)


def tilted(logit, b, n, i, j):
    return logit + (i - j) / (4.0 + b + n)


OPTIONS = {"bias": BIAS, "score_mod": tilted, "soft_cap": 3.0, "scale": 0.8}


def attend(implementation, q=Q, k=KEYS, v=VALUES, **options):
    mask = masks.padding(jnp.asarray(LENGTHS))
    return dot_product_attention(q, k, v, mask=mask, implementation=implementation, **OPTIONS, **options)


def stats(implementation, q=Q, k=KEYS, v=VALUES, **options):
    return dot_product_attention_stats(q, k, v, implementation=implementation, **options)


@pytest.mark.parametrize("policy", ["zero", "uniform", "nan"])
def test_weights_of_blockwise_are_those_of_dense(policy):
    def run(implementation):
        return attend(implementation, empty_row=policy, return_weights=True)

    with jax.enable_x64(True):
        ours, expected = (quickly(partial(run, name))() for name in ("blockwise", "dense"))
        assert difference(ours, expected) <= FLOAT64
        empty = {"zero": 0.0, "uniform": 1 / S, "nan": np.nan}[policy]
        assert np.array_equal(np.asarray(ours.weights)[:, :, 2], np.full((B, N, S), empty), equal_nan=True)


@pytest.mark.parametrize("implementation", ["blockwise", "dense"])
def test_the_output_is_the_same_bits_with_and_without_weights(implementation):
    def run(**options):
        return attend(implementation, **options).output

    plain = run()
    assert np.array_equal(plain, run(return_weights=True))
    assert np.array_equal(plain, run(weights_for=([1], [0, 2])))
    jitted = jax.jit(run)()
    assert np.array_equal(jitted, jax.jit(partial(run, return_weights=True))())


def weights_loss(implementation, q, k, v):
    found = attend(implementation, q, k, v, return_weights=True)
    return jnp.vdot(found.weights, COTANGENT) + jnp.sum(found.output**2)


def chosen_loss(implementation, q, k, v):
    chosen = attend(implementation, q, k, v, weights_for=([3, 0], [1, -1])).weights
    return jnp.vdot(chosen, COTANGENT[:, [3, 0]][:, :, [1, -1]])


def lse_loss(implementation, q, k, v):
    if implementation == "dense":  # by definition
        logits = 0.7 * jnp.einsum("btkgh,bskh->bkgts", q.reshape(B, T, K, N // K, H), k).reshape(B, N, T, S)
        lse = jax.nn.logsumexp(logits + np.where(np.tri(T, S, -1), -np.inf, 0.0), axis=-1)
    else:
        found = stats(implementation, q, k, v, scale=0.7, mask=~masks.causal(-1))
        lse = found.row_max + jnp.log(found.row_sum)
    return jnp.vdot(lse, COTANGENT[..., 0])


def merged_loss(implementation, q, k, v):
    """The keys in two parts, of which a row may have none of either."""
    if implementation == "dense":
        bias = np.where(np.arange(S) < LENGTHS[:, None], 0.0, -np.inf)[:, None, None]
        found = stats(implementation, q, k, v, scale=0.7, bias=bias)
        return jnp.sum(jnp.sin(found.output)) + jnp.vdot(found.row_max + jnp.log(found.row_sum), COTANGENT[..., 0])
    parts = [
        stats(implementation, q, k[:, part], v[:, part], scale=0.7, mask=masks.padding(lengths))
        for part, lengths in ((slice(4), np.minimum(LENGTHS, 4)), (slice(4, None), np.maximum(LENGTHS - 4, 0)))
    ]
    row_max = jnp.maximum(*(part.row_max for part in parts))
    sums = [part.row_sum * jnp.exp(part.row_max - row_max) for part in parts]
    columns = [jnp.swapaxes(total, -1, -2)[..., None] for total in sums]
    output = sum(part.output * column for part, column in zip(parts, columns, strict=True)) / sum(columns)
    return jnp.sum(jnp.sin(output)) + jnp.vdot(row_max + jnp.log(sum(sums)), COTANGENT[..., 0])


@pytest.mark.parametrize("loss", [weights_loss, chosen_loss, lse_loss, merged_loss])
def test_losses_on_weights_and_statistics_have_the_gradients_of_dense(loss):
    with jax.enable_x64(True):
        ours, expected = (
            quickly(jax.value_and_grad(partial(loss, name), (0, 1, 2)))(Q, KEYS, VALUES)
            for name in ("blockwise", "dense")
        )
        assert all(np.isfinite(part).all() for part in jax.tree.leaves(expected))
        assert difference(ours, expected) <= GRADIENTS


def test_statistics_of_an_empty_row():
    found = stats("blockwise", mask=masks.padding(np.array([0, S])), empty_row="uniform")
    assert np.isneginf(found.row_max[0]).all() and not np.asarray(found.row_sum[0]).any()
    assert np.isfinite(found.row_max[1]).all() and (np.asarray(found.row_sum[1]) >= 1).all()


@pytest.mark.parametrize("implementation", ["blockwise", "dense"])
def test_rows_of_very_low_logits_keep_their_accuracy(implementation):
    """With m + log l in place of m and l, log S would be lost beside 10⁹, and the weights would be 1."""
    bias = np.zeros((T, S), np.float32)
    bias[1:3] = -1e9
    q, k, v = (array.astype(np.float32) for array in (Q, KEYS, VALUES))
    output, weights = dot_product_attention(q, k, v, bias=bias, return_weights=True, implementation=implementation)
    assert np.abs(np.asarray(weights)[:, :, 1:3] - 1 / S).max() <= np.finfo(np.float32).eps
    means = np.repeat(v.mean(axis=1), N // K, axis=1)
    assert np.abs(np.asarray(output)[:, 1:3] - means[:, None]).max() <= 4 * np.finfo(np.float32).eps


SELECTIONS = [
    ([3, 0], [4]),
    (None, [-1, 0, -5]),
    ([-2], None),
    ([], [1]),
    ([0, 0], []),
    (np.array([2]), np.array([1, -1])),
]


def test_chosen_weights_are_a_part_of_all():
    def run():
        parts = [attend("blockwise", weights_for=selection).weights for selection in SELECTIONS]
        return attend("blockwise", return_weights=True).weights, parts

    with jax.enable_x64(True):
        whole, parts = jax.tree.map(np.asarray, quickly(run)())
        for (heads, rows), got in zip(SELECTIONS, parts, strict=True):
            expected = whole if heads is None else whole[:, np.asarray(heads, int)]
            expected = expected if rows is None else expected[:, :, np.asarray(rows, int)]
            assert got.shape == expected.shape and np.abs(got - expected).max(initial=0.0) <= FLOAT64


@pytest.mark.parametrize(
    ("chosen", "error", "sentence"),
    [
        (([N], [0]), ValueError, rf"`weights_for \(heads\)` must lie in \[.*{N}\), got \[{N}\]"),
        (([0], [-T - 1]), ValueError, r"`weights_for \(rows\)`"),
        (([0.5], [0]), TypeError, "must be a list of integers"),
        (([[0]], [0]), TypeError, "must be a list of integers"),
        (([True], [0]), TypeError, "must be a list of integers"),
    ],
)
def test_indices_that_are_none(chosen, error, sentence):
    with refuses(error, sentence):
        attend("dense", weights_for=chosen)


@pytest.mark.parametrize("implementation", ["blockwise", "dense"])
def test_recorded_weights_are_those_returned(implementation):
    asked = attend(implementation, return_weights=True)
    heard = {}
    with listening(heard.__setitem__):
        plain = attend(implementation)
    assert plain.weights is None and np.array_equal(plain.output, asked.output)
    assert np.array_equal(heard["weights"], asked.weights)
