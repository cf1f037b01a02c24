"""ScaledDotProductSelfAttention: its mask rule."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn

from ..errors import refuses
from ..inputs import B, D, T, generator
from ..tolerances import close

MODULE = jaxattn.ScaledDotProductSelfAttention(D, rngs=nnx.Rngs(0))
X = generator("scaled").normal(size=(B, T, D)).astype(np.float32)


def test_a_padding_mask_over_keys():
    keep = np.arange(T) < np.array([[2], [5], [3]])
    _, weights = MODULE(X, keep[:, None, :])
    assert not np.asarray(weights)[0, :, 2:].any() and close(weights.sum(-1), np.ones((B, T)))


def test_a_fully_blocked_row_attends_uniformly():
    keep = np.ones((B, T, T), np.float32)
    keep[1, 2] = 0
    output, weights = MODULE(X, keep)
    assert close(weights[1, 2], np.full(T, 1 / T))
    assert close(output[1, 2], np.asarray(MODULE.W_v(jnp.asarray(X[1]))).mean(axis=0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masks_do_not_overflow_in_half_precision(dtype):
    module = jaxattn.ScaledDotProductSelfAttention(D, param_dtype=dtype, rngs=nnx.Rngs(0))
    keep = np.tri(T, dtype=bool)
    keep[0] = False
    output, weights = module(jnp.asarray(X, dtype), keep)
    assert str(output.dtype) == dtype and np.isfinite(np.asarray(output, np.float32)).all()
    assert not np.asarray(weights, np.float32)[:, 1, 2:].any()


@pytest.mark.parametrize(
    ("mask", "error", "sentence"),
    [
        (np.where(np.tri(T), 0.0, -1e9), ValueError, "looks additive"),
        (np.ones((T, T + 1)), ValueError, r"logits \(..., L, L\) = \(3, 5, 5\), got shape \(5, 6\)"),
        (np.ones((B, 2, T, T)), ValueError, r"`mask\[:, None, :\]`"),
    ],
)
def test_bad_masks(mask, error, sentence):
    with refuses(error, sentence):
        MODULE(X, mask)


def test_bad_width():
    with refuses(ValueError, r"last axis 17, got shape \(3, 5, 16\)"):
        MODULE(X[..., :-1])
