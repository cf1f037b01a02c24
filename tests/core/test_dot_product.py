"""The operation against torch's, by hand, and in every setting it takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxattn import dot_product_attention

from ..inputs import B, G, H, K, S, T, V, generator
from ..tolerances import FLOAT64, close

N = K * G


def draw(name: str, *, heads: int = N, kv_heads: int = K):
    rng = generator(name)
    q, k, v = (
        rng.normal(size=(B, T, heads, H)),
        rng.normal(size=(B, S, kv_heads, H)),
        rng.normal(size=(B, S, kv_heads, V)),
    )
    return q, k, v, rng


def sdpa(q, k, v, **options: Any):
    """torch's operation in our layout; grouped heads by its own enable_gqa."""
    q, k, v = (torch.from_numpy(x).transpose(-3, -2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options).transpose(-3, -2).numpy()


def test_grouped_heads_masks_and_bias_against_torch():
    q, k, v, rng = draw("grouped")
    mask = rng.random((B, N, T, S)) < 0.6
    mask[0, 1, 2] = False
    bias = rng.normal(size=(N, T, S))
    with jax.enable_x64(True):
        for ours, theirs in [({}, {}), ({"mask": mask}, {"attn_mask": torch.from_numpy(mask)}), ({"bias": bias}, None)]:
            theirs = {"attn_mask": torch.from_numpy(bias[None])} if theirs is None else theirs
            got = dot_product_attention(q, k, v, **ours).output
            assert np.abs(np.asarray(got) - sdpa(q, k, v, **theirs)).max() <= FLOAT64
        got = dot_product_attention(q, k, v, scale=0.7).output
        assert np.abs(np.asarray(got) - sdpa(q, k, v, scale=0.7)).max() <= FLOAT64


def test_query_heads_read_their_group_in_order():
    """N = 4, K = 2: heads 0, 1 use kv head 0 and heads 2, 3 use kv head 1 (repeat, never tile)."""
    v = np.broadcast_to(np.array([0.0, 1.0])[:, None], (S, 2, V))
    output = dot_product_attention(np.ones((T, 4, H)), np.ones((S, 2, H)), v).output
    assert np.array_equal(np.asarray(output)[0, :, 0], [0, 0, 1, 1])


def test_weights_by_hand():
    """Logits 0 and log 3 give 1/4 and 3/4; scale 1/√H is √(1/4) for H = 4; a soft cap of 1 gives tanh."""
    q, k = np.zeros((1, 1, 4), np.float32), np.zeros((2, 1, 4), np.float32)
    q[0, 0, 0], k[1, 0, 0] = 2.0, np.log(3.0)
    v = np.array([[[0.0]], [[8.0]]], np.float32)
    output, weights = dot_product_attention(q, k, v, return_weights=True)
    assert close(weights, [[[0.25, 0.75]]]) and close(output, [[[6.0]]])
    capped = dot_product_attention(q, k, v, soft_cap=1.0, return_weights=True).weights
    odds = np.exp(np.tanh(np.log(3.0)))
    assert close(capped, [[[1 / (1 + odds), odds / (1 + odds)]]])


@pytest.mark.parametrize(("policy", "expected"), [("zero", 0.0), ("uniform", 1 / S), ("nan", np.nan)])
def test_empty_rows(policy, expected):
    q, k, v, _ = draw("empty", heads=K)
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    mask = np.ones((B, 1, T, S), bool)
    mask[1, 0, 3] = False

    def run(q, k, v):
        return dot_product_attention(q, k, v, mask=mask, empty_row=policy, return_weights=True)

    output, weights = run(q, k, v)
    assert np.array_equal(np.asarray(weights)[1, :, 3], np.full((K, S), expected, np.float32), equal_nan=True)
    others = np.delete(np.asarray(output)[1], 3, axis=0)
    assert np.isfinite(others).all()
    if policy == "uniform":
        assert close(np.asarray(output)[1, 3], v[1].mean(axis=0))
    if policy != "nan":
        grads = jax.grad(lambda *a: (run(*a).output ** 2).sum() + (run(*a).weights ** 2).sum(), (0, 1, 2))(q, k, v)
        assert all(np.isfinite(np.asarray(g)).all() for g in grads)
        assert not np.asarray(grads[0])[1, 3].any()


def test_minus_infinity_in_a_bias_blocks_and_nan_propagates():
    q, k, v, _ = draw("bias", heads=K)
    bias = np.zeros((T, S))
    bias[2, 3:] = -np.inf
    bias[4] = -np.inf
    with jax.enable_x64(True):
        output, weights = dot_product_attention(q, k, v, bias=bias, return_weights=True)
        masked = dot_product_attention(q, k, v, mask=bias == 0, return_weights=True)
        assert np.abs(np.asarray(output - masked.output)).max() <= FLOAT64
    assert not np.asarray(weights)[:, :, 2, 3:].any() and not np.asarray(weights)[:, :, 4].any()
    bias[1, 1] = np.nan
    output = np.asarray(dot_product_attention(q, k, v, bias=bias).output)
    assert np.isnan(output[:, 1]).all() and not np.isnan(np.delete(output, 1, axis=1)).any()


def test_nan_in_a_masked_key_is_not_seen():
    q, k, v, _ = draw("nan key", heads=K)
    mask = np.ones((T, S), bool)
    mask[:, 3] = False
    poisoned = k.copy()
    poisoned[:, 3] = np.nan
    got = dot_product_attention(q, poisoned, v, mask=mask)
    assert np.array_equal(np.asarray(got.output), np.asarray(dot_product_attention(q, k, v, mask=mask).output))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_is_that_of_q_and_masks_do_not_overflow(dtype):
    q, k, v, _ = draw(dtype, heads=K)
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    mask = np.ones((T, S), bool)
    mask[2] = False
    for policy in ("zero", "uniform"):
        output, weights = dot_product_attention(q, k, v, mask=mask, empty_row=policy, return_weights=True)
        assert output.dtype == weights.dtype == jnp.dtype(dtype)
        assert np.isfinite(np.asarray(output, np.float32)).all()
    sums = jnp.sum(weights.astype(jnp.float32), axis=-1)
    assert np.abs(np.asarray(sums) - 1).max() <= S * float(jnp.finfo(dtype).eps)


def test_float64_stays_float64():
    q, k, v, _ = draw("x64", heads=K)
    with jax.enable_x64(True):
        assert all(x.dtype == jnp.float64 for x in dot_product_attention(q, k, v, return_weights=True))


def test_dropout_scales_what_it_keeps():
    q, k, v, rng = draw("dropout", heads=K)
    keep = rng.random((B, K, T, S)) < 0.5
    with jax.enable_x64(True):
        plain = dot_product_attention(q, k, v, return_weights=True)
        dropped = dot_product_attention(q, k, v, dropout_rate=0.2, dropout_mask=keep, return_weights=True)
        expected = np.einsum("bnts,bsnv->btnv", np.asarray(plain.weights) * keep * 1.25, v)
        assert np.abs(np.asarray(dropped.output) - expected).max() <= FLOAT64
        assert np.array_equal(dropped.weights, plain.weights)
    rng_key = jax.random.key(0)
    drawn = [dot_product_attention(q, k, v, dropout_rate=0.5, dropout_rng=rng_key).output for _ in range(2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(np.asarray(drawn[0]), np.asarray(plain.output))


def test_drawn_dropout_differs_between_heads_and_examples():
    eye = np.broadcast_to(np.eye(S)[None, :, None, :], (2, S, 2, S))
    zeros = np.zeros((2, S, 2, H))
    output = dot_product_attention(zeros, zeros, eye, dropout_rate=0.5, dropout_rng=jax.random.key(1)).output
    kept = np.asarray(output) > 0  # the output rows are the dropped weights themselves
    maps = [kept[b, :, n] for b in range(2) for n in range(2)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(maps) for b in maps[:i])
    assert set(np.unique(np.asarray(output).round(5))) == {0.0, np.float32(2 / S).round(5)}


@pytest.mark.parametrize("shape", [(0, T, S), (B, 0, S), (B, T, 0)])
def test_empty_batches_and_sequences(shape):
    b, t, s = shape
    output, weights = dot_product_attention(
        np.ones((b, t, K, H)), np.ones((b, s, K, H)), np.ones((b, s, K, V)), return_weights=True
    )
    assert output.shape == (b, t, K, V) and weights.shape == (b, K, t, s) and not np.asarray(output).any()


def test_the_output_does_not_depend_on_asking_for_weights():
    q, k, v, _ = draw("ask")
    asked = dot_product_attention(q, k, v, return_weights=True)
    plain = dot_product_attention(q, k, v)
    assert plain.weights is None and np.array_equal(np.asarray(asked.output), np.asarray(plain.output))
    jitted = jax.jit(lambda *a: dot_product_attention(*a, return_weights=True).output)(q, k, v)
    assert np.array_equal(np.asarray(jitted), np.asarray(jax.jit(lambda *a: dot_product_attention(*a).output)(q, k, v)))
