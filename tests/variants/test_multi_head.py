"""MultiHeadSelfAttention and MultiHeadCrossAttention: head order, mask ranks, errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn

from ..errors import refuses
from ..inputs import B, H, S, T, V, generator
from ..tolerances import close

N = 2
E = N * H
SELF = jaxattn.MultiHeadSelfAttention(E, N, rngs=nnx.Rngs(0))
CROSS = jaxattn.MultiHeadCrossAttention(E, N, V, rngs=nnx.Rngs(0))
RNG = generator("multi_head")
X, CONTEXT = RNG.normal(size=(B, T, E)).astype(np.float32), RNG.normal(size=(B, S, V)).astype(np.float32)


def test_heads_are_consecutive_slices_scaled_by_their_own_width():
    """Head n computed from columns nH … (n+1)H of the projections alone, scale 1/√H and not 1/√E."""
    _, weights = SELF(X)
    q, k = np.asarray(SELF.Wq(jnp.asarray(X)), np.float64), np.asarray(SELF.Wk(jnp.asarray(X)), np.float64)
    for n in range(N):
        head = slice(n * H, (n + 1) * H)
        logits = np.einsum("bth,bsh->bts", q[..., head], k[..., head]) / np.sqrt(H)
        expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        assert close(weights[:, n], expected)


def test_mask_ranks_agree():
    keep = RNG.random((B, T, T)) < 0.5
    by_rank = [SELF(X, keep).weights, SELF(X, keep[:, None]).weights]
    by_rank.append(SELF(X, np.broadcast_to(keep[:, None], (B, N, T, T))).weights)
    assert all(np.array_equal(weights, by_rank[0]) for weights in by_rank)
    one = SELF(X[0], keep[0]).weights
    assert close(one, by_rank[0][0])


def test_a_padding_mask_over_keys_blocks_columns():
    keep = np.arange(S) < np.array([[3], [7], [5]])
    _, weights = CROSS(X, CONTEXT, keep[:, None, None, :])
    assert weights.shape == (B, N, T, S)
    assert not np.asarray(weights)[0, :, :, 3:].any() and not np.asarray(weights)[2, :, :, 5:].any()
    assert close(weights.sum(-1), np.ones((B, N, T)))


def test_mask_values_are_taken():
    lengths = np.array([3, 7, 5])
    keep = np.arange(S) < lengths[:, None]
    by_value = CROSS(X, CONTEXT, jaxattn.masks.padding(lengths)).weights
    assert close(by_value, CROSS(X, CONTEXT, keep[:, None, None, :]).weights)
    single = jaxattn.ScaledDotProductSelfAttention(E, rngs=nnx.Rngs(0))
    for module in (SELF, single):
        assert close(module(X, jaxattn.masks.causal()).output, module(X, np.tri(T)).output)


def test_examples_of_a_batch_do_not_mix():
    keep = RNG.random((B, T, S)) < 0.5
    together = CROSS(X, CONTEXT, keep)
    for b in range(B):
        alone = CROSS(X[b : b + 1], CONTEXT[b : b + 1], keep[b : b + 1])
        assert close(alone.output[0], together.output[b]) and close(alone.weights[0], together.weights[b])


def test_empty_context_and_batch():
    output, weights = CROSS(X, CONTEXT[:, :0])
    assert weights.shape == (B, N, T, 0) and close(
        output, np.broadcast_to(jaxattn.state_dict(CROSS)["W_o.bias"], (B, T, E))
    )
    assert CROSS(X[:0], CONTEXT[:0]).output.shape == (0, T, E)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: jaxattn.MultiHeadSelfAttention(64, 6, rngs=nnx.Rngs(0)), "num_heads=6, embed_dim=64"),
        (lambda: jaxattn.MultiHeadSelfAttention(0, 2, rngs=nnx.Rngs(0)), "`embed_dim` must be 1 or more, got 0"),
        (lambda: jaxattn.MultiHeadCrossAttention(64, 0, rngs=nnx.Rngs(0)), "`num_heads` must be 1 or more, got 0"),
        (lambda: SELF(X, np.ones((2, 2, B, T, T))), r"rank 2 or less .* got shape \(2, 2, 3, 5, 5\)"),
        (lambda: SELF(X, np.ones((B, T))), "must broadcast"),
        (lambda: SELF(X, np.where(np.tri(T), 0.0, -1e9)), "looks additive"),
        (lambda: CROSS(X, X), r"`context` must be \[\*B, S, kv_dim\] with last axis 13"),
        (lambda: CROSS(X, CONTEXT[:2]), "batch axes"),
    ],
)
def test_bad_input(call, sentence):
    with refuses(ValueError, sentence):
        call()
