"""Masks as other code gives them, brought to one form."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn
from jaxattn.core.mask_arrays import causal_array, from_nonzero, from_torch_masks, insert_head_axis

from ..errors import refuses
from ..inputs import B, S, T


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int8, np.float32, jnp.bfloat16])
def test_non_zero_may_attend_in_any_dtype(dtype):
    keep = np.tri(T, S)
    assert np.array_equal(np.asarray(from_nonzero(jnp.asarray(keep, dtype))), keep.astype(bool))


def test_a_known_mask_inside_jit_is_still_checked():
    """A mask that a jitted function closes over has values, although comparing it there would be traced."""
    keep, additive = jnp.tri(T, S), jnp.where(jnp.tri(T, S) > 0, 0.0, -1e9)
    assert np.array_equal(jax.jit(lambda: from_nonzero(keep))(), np.tri(T, S, dtype=bool))
    with refuses(ValueError, "looks additive"):
        jax.jit(lambda: from_nonzero(additive))()
    blocked = ~jnp.tri(T, S, dtype=bool)
    mask = jax.jit(lambda: from_torch_masks(blocked, None, (2, T, S), is_causal=True)[0])()
    assert np.array_equal(np.broadcast_to(mask, (T, S)), np.tri(T, S, dtype=bool))


def test_masks_are_numbers():
    with refuses(TypeError, "booleans or numbers"):
        from_nonzero(np.array(["a"] * S))


def test_an_additive_mask_is_refused_outside_jit():
    additive = np.where(np.tri(T, S), 0.0, -1e9).astype(np.float32)
    with refuses(ValueError, "looks additive"):
        from_nonzero(additive)
    # Values are unknown inside jit, so the rule is applied as it stands.
    assert jax.jit(from_nonzero)(additive).sum() == (additive != 0).sum()


@pytest.mark.parametrize(
    ("batch", "shape", "expected"),
    [
        (0, (S,), (S,)),
        (0, (T, S), (T, S)),
        (0, (2, T, S), (2, T, S)),
        (1, (T, S), (T, S)),
        (1, (B, T, S), (B, 1, T, S)),
        (1, (B, 1, 1, S), (B, 1, 1, S)),
        (2, (T, S), (T, S)),
        (2, (4, B, T, S), (4, B, 1, T, S)),
        (2, (4, B, 2, T, S), (4, B, 2, T, S)),
    ],
)
def test_head_axis(batch, shape, expected):
    assert insert_head_axis(jnp.ones(shape, bool), batch).shape == expected


@pytest.mark.parametrize(("batch", "shape"), [(0, (1, 1, T, S)), (1, (1, 1, 1, T, S)), (2, (B, T, S))])
def test_other_ranks_are_refused(batch, shape):
    with refuses(ValueError, r"padding mask over keys \(B, S\) is `mask\[:, None, None, :\]`"):
        insert_head_axis(jnp.ones(shape, bool), batch)


def test_torch_polarity_is_negated_and_floats_are_added():
    blocked = ~np.tri(T, S, dtype=bool)
    padding = np.broadcast_to(np.where(np.arange(S) > 4, -np.inf, 0.5), (B, S)).astype(np.float32)
    mask, bias = from_torch_masks(blocked, padding, (B, 2, T, S))
    assert mask is not None and bias is not None
    assert np.array_equal(mask, np.tri(T, S, dtype=bool)) and bias.shape == (B, 1, 1, S)
    assert np.array_equal(bias[0, 0, 0], padding[0])


def test_a_float_mask_of_zeros_and_ones_is_added_with_a_warning():
    flags, padding = np.tri(T, S, dtype=np.float32), np.ones((B, S), np.float32)
    with pytest.warns(UserWarning, match="`attn_mask` is a float mask of 0 and 1, which is added"):
        _, bias = from_torch_masks(flags, None, (B, 2, T, S))
    assert bias is not None and np.array_equal(bias, flags)
    padding[:, -1] = 0
    with pytest.warns(UserWarning, match="`key_padding_mask` is"):
        from_torch_masks(None, padding, (B, 2, T, S))
    query = np.ones((1, T, 2), np.float32)
    with pytest.warns(UserWarning, match="`attn_mask` is"):
        jaxattn.scaled_dot_product_attention(query, query, query, flags[:, :T])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mask in (flags - 1, 2 * flags, np.zeros((T, S), np.float32), flags > 0):
            from_torch_masks(mask, None, (B, 2, T, S))
        jax.jit(lambda mask: from_torch_masks(mask, None, (B, 2, T, S))[1])(flags)


def test_mask_values_are_refused_where_torch_names_an_array():
    causal = jaxattn.masks.causal()
    with refuses(TypeError, r"True = blocked, got the mask value Causal.*pass `~mask.to_array\(T, S\)`"):
        from_torch_masks(causal, None, (B, 2, T, S))
    with refuses(TypeError, "`key_padding_mask` must be an array"):
        from_torch_masks(None, jaxattn.masks.padding(np.array([1, 2, 3])), (B, 2, T, S))
    query = np.ones((1, T, 2), np.float32)
    with refuses(TypeError, r"True = may attend, .*pass `mask.to_array\(T, S\)`"):
        jaxattn.scaled_dot_product_attention(query, query, query, causal)
    layer = jaxattn.TransformerEncoderLayer(2, 2, 3, rngs=nnx.Rngs(0))
    with refuses(TypeError, "got the mask value Causal"):
        layer(np.ones((B, T, 2), np.float32), src_mask=causal)


def test_three_axes_are_batch_times_heads():
    """Index b·N + n: repeat for each example, never tile."""
    blocked = np.zeros((B * 2, T, S), bool)
    blocked[1 * 2 + 0, 3, 4] = True
    mask, _ = from_torch_masks(blocked, None, (B, 2, T, S))
    assert list(np.argwhere(~np.asarray(mask))[0]) == [1, 0, 3, 4] and (~np.asarray(mask)).sum() == 1


def test_appended_rows_may_always_be_attended():
    mask, bias = from_torch_masks(np.ones((T, S), bool), np.full((B, S), -3.0, np.float32), (B, 2, T, S), appended=2)
    assert (
        mask is not None
        and mask.shape[-1] == S + 2
        and np.asarray(mask)[..., S:].all()
        and not np.asarray(mask)[..., :S].any()
    )
    assert not np.asarray(bias)[..., S:].any()


def test_the_causal_promise_is_checked_outside_jit():
    causal = causal_array(T, S)
    for promise in (~causal, np.where(causal, 0.0, -np.inf).astype(np.float32)):
        mask, _ = from_torch_masks(promise, None, (2, T, S), is_causal=True)
        assert mask is not None and np.array_equal(np.broadcast_to(mask, (T, S)), causal)
    with refuses(ValueError, "promises that `attn_mask` is the causal mask"):
        from_torch_masks(causal, None, (2, T, S), is_causal=True)
    with refuses(ValueError, "got attn_mask=None"):
        from_torch_masks(None, None, (2, T, S), is_causal=True)


@pytest.mark.parametrize(
    ("attn_mask", "padding", "error", "sentence"),
    [
        (np.zeros((T, S), np.int64), None, TypeError, "`attn_mask` must be boolean"),
        (None, np.zeros((B, S), np.int64), TypeError, "pass `key_padding_mask != 0`"),
        (np.zeros((S, T), bool), None, ValueError, r"\[T, S\] or \[B·N, T, S\] = \(5, 7\) or \(6, 5, 7\)"),
        (np.zeros((B, T, S), bool), None, ValueError, r"got shape \(3, 5, 7\)"),
        (np.zeros((B, 2, T, S), bool), None, ValueError, r"got shape \(3, 2, 5, 7\)"),
        (None, np.zeros((S, B), bool), ValueError, r"\[\*B, S\] = \(3, 7\)"),
    ],
)
def test_bad_torch_masks(attn_mask, padding, error, sentence):
    with refuses(error, sentence):
        from_torch_masks(attn_mask, padding, (B, 2, T, S))
