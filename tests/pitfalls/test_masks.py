"""Masks: what goes wrong when attention moves between PyTorch and JAX. Expected values by hand or from torch."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import masks
from torchref.core.plain_path import plain_path

from ..inputs import generator, randomise
from ..tolerances import close

RNG = generator("pitfalls of masks")


def attention(embed_dim: int, num_heads: int, **options) -> tuple[nn.MultiheadAttention, Any]:
    oracle = randomise(nn.MultiheadAttention(embed_dim, num_heads, batch_first=True, **options), "pitfalls")
    return oracle, jaxattn.from_torch(oracle)


def run(module, *inputs, **options):
    """module(*inputs, **options) as one program; masks are arguments of it, flags are not."""
    flags = {name: option for name, option in options.items() if option is None or isinstance(option, bool | str)}
    arrays = {name: option for name, option in options.items() if name not in flags}
    return jax.jit(lambda inputs, arrays: module(*inputs, **arrays, **flags))(inputs, arrays)


attend = partial(run, jaxattn.dot_product_attention)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def equal_logits(length_q: int, length_kv: int, mask) -> np.ndarray:
    """Weights [T, S] where all logits are 0: each row is spread over what its query may attend to."""
    q, k = jnp.zeros((length_q, 1, 2)), jnp.zeros((length_kv, 1, 2))
    return np.asarray(attend(q, k, k, mask=mask, return_weights=True).weights[0])


def test_polarity_goes_by_the_arguments_name():
    """A01: strictly upper triangular True blocks the future as torch's attn_mask, and is all there is as a mask."""
    _, module = attention(4, 2)
    upper, x = np.triu(np.ones((3, 3), bool), 1), normal(1, 3, 4)
    weights = run(module, x, x, x, attn_mask=upper, average_attn_weights=False).weights
    assert ((weights > 0) == np.tri(3, dtype=bool)).all()
    ours = equal_logits(3, 3, upper)
    assert np.array_equal(ours, [[0, 0.5, 0.5], [0, 0, 1], [0, 0, 0]])


@pytest.mark.parametrize("empty_row", [None, "zero"])
def test_an_empty_row_does_not_poison_the_gradients(empty_row):
    """A03: a band of self and previous, the last two keys of the second example padded: its last query sees nothing."""
    _, module = attention(1, 1)
    band = np.where(np.tri(4, dtype=bool) & ~np.tri(4, k=-2, dtype=bool), 0, -np.inf).astype(np.float32)
    padding = np.array([[False] * 4, [False, False, True, True]])
    x, options = normal(2, 4, 1), {"attn_mask": band, "empty_row": empty_row, "need_weights": empty_row is not None}

    def loss(module, x):
        output = module(x, x, x, padding, **options).output
        return jnp.where(padding[..., None], 0, output).sum()

    assert np.asarray(run(module, x, x, x, padding, **options).output)[1, 3] == np.asarray(module.out_proj.bias[...])
    of_module, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(module, x)
    gradients = [*jax.tree.leaves(nnx.state(of_module)), of_x]
    assert all(np.isfinite(gradient).all() for gradient in gradients) and np.any(of_x[1])


def test_a_floating_mask_of_ones_and_zeros_is_added():
    """A07: row 0 of a lower triangle of ones, on equal logits, is softmax([1, 0]), not [1, 0]."""
    oracle, _ = attention(2, 1)
    with torch.no_grad():
        oracle.in_proj_weight.zero_()
        oracle.in_proj_bias.zero_()
    module = jaxattn.from_torch(oracle)
    x = np.ones((1, 2, 2), np.float32)
    weights = run(module, x, x, x, attn_mask=np.tri(2, dtype=np.float32)).weights
    assert np.allclose(weights[0], [[0.7311, 0.2689], [0.5, 0.5]], atol=1e-4)


def test_padding_joins_a_mask_by_head_on_the_keys_alone():
    """A11, A15: nothing but the column of the padded key is blocked beside the causal mask; rows sum to 1."""
    _, module = attention(4, 2)
    causal = np.repeat(~np.tri(5, dtype=bool)[None], 4, axis=0)
    padding, x = np.array([[False] * 5, [False] * 4 + [True]]), normal(2, 5, 4)
    weights = np.asarray(run(module, x, x, x, padding, attn_mask=causal, average_attn_weights=False).weights)
    expected = np.repeat(np.tri(5, dtype=bool)[None], 2, axis=0)
    expected[1, :, 4] = False
    assert ((weights > 0) == expected[:, None]).all() and np.allclose(weights.sum(-1), 1)


def test_left_padding_in_a_batch_changes_nothing():
    """A14: rows of padding see nothing under a causal mask; the real tokens are those of the prompt alone."""
    oracle = randomise(nn.TransformerEncoderLayer(4, 2, 7, batch_first=True), "pitfalls")
    module = jax.jit(jaxattn.from_torch(oracle))
    x, padding = normal(2, 4, 4), np.array([[True, True, False, False], [False] * 4])
    together = module(x, ~np.tri(4, dtype=bool), padding)
    alone = module(x[:1, 2:], ~np.tri(2, dtype=bool), padding[:1, 2:])
    assert np.isfinite(together).all() and close(together[0, 2:], alone[0])


def test_a_window_needs_no_other_mask():
    """A18: a window of the position itself gives its value, exactly."""
    q, k, v = normal(4, 2, 3), normal(4, 2, 3), normal(4, 2, 3)
    assert np.array_equal(attend(q, k, v, mask=masks.sliding_window(0, 0)).output, v)


def test_lengths_of_keys_need_no_lengths_of_queries():
    """A19: two of four keys are seen by every query."""
    x, lengths = normal(2, 4, 2, 3), np.array([2, 4])
    keep = np.arange(4) < lengths[:, None, None, None]
    by_lengths = attend(x, x, x, mask=masks.padding(lengths)).output
    assert close(by_lengths, attend(x, x, x, mask=keep).output)
    assert close(by_lengths[0, 3], attend(x[0, 3:], x[0, :2], x[0, :2]).output[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_float32_mask_beside_narrow_queries(dtype):
    """A21: what is added is the same numbers, whatever its dtype."""
    x = jnp.asarray(normal(1, 3, 2, 4), dtype)
    added = np.where(np.tri(3), np.array([0.5, -1.25, 2.0]), -np.inf).astype(np.float32)
    wide, narrow = (attend(x, x, x, bias=jnp.asarray(added, d)) for d in ("float32", dtype))
    assert wide.output.dtype == dtype and np.array_equal(wide.output, narrow.output)


def test_a_band_gives_no_nan_without_weights():
    """A23: 64 positions, a band of 10; torch's two paths and ours agree."""
    oracle, module = attention(4, 2)
    x, band = normal(1, 64, 4), ~(np.tri(64, k=9, dtype=bool) & np.tri(64, k=9, dtype=bool).T)
    tensor, mask = torch.from_numpy(x), torch.from_numpy(band)
    for need_weights in (True, False):
        with torch.no_grad(), plain_path():
            expected = oracle(tensor, tensor, tensor, attn_mask=mask, need_weights=need_weights)[0]
        assert close(run(module, x, x, x, attn_mask=band, need_weights=need_weights).output, expected)


def test_every_mask_is_boolean():
    """A25: no helper gives numbers that could be added by mistake."""
    made = [
        masks.causal(),
        masks.sliding_window(1, 1),
        masks.padding(np.array([1, 2])),
        masks.segments(np.zeros((2, 3), int), np.zeros((2, 3), int)),
        masks.prefix(2),
        masks.from_array(np.ones((3, 3), bool)),
        masks.from_predicate(lambda b, n, i, j: i >= j),
        masks.causal() & ~masks.prefix(1) | masks.sliding_window(0, 0),
    ]
    assert {str(mask.to_array(3, 3, batch=(2,), num_heads=1).dtype) for mask in made} == {"bool"}


@pytest.mark.parametrize(
    ("length_q", "length_kv", "top_left", "bottom_right"),
    [
        (1, 4, ["1000"], ["1111"]),
        (2, 4, ["1000", "1100"], ["1110", "1111"]),
        (5, 2, ["10", "11", "11", "11", "11"], ["00", "00", "00", "10", "11"]),
    ],
)
def test_both_causal_alignments(length_q, length_kv, top_left, bottom_right):
    """B01: with equal logits each row is spread over what it sees."""
    for offset, rows in ((0, top_left), (length_kv - length_q, bottom_right)):
        seen = np.array([[float(digit) for digit in row] for row in rows])
        expected = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
        assert np.allclose(equal_logits(length_q, length_kv, masks.causal(offset)), expected)


def test_weights_do_not_switch_the_causal_mask_off():
    """B02, D04: with and without weights, with and without the promise; torch's is the same in all four."""
    oracle, module = attention(8, 2)
    x, causal = normal(4, 3, 8), ~np.tri(3, dtype=bool)
    tensor = torch.from_numpy(x)
    with torch.no_grad(), plain_path():
        expected = oracle(tensor, tensor, tensor, attn_mask=torch.from_numpy(causal))
    for need_weights in (True, False):
        for is_causal in (True, False):
            got = run(module, x, x, x, attn_mask=causal, need_weights=need_weights, is_causal=is_causal)
            assert close(got.output, expected[0])
            if need_weights:
                assert close(got.weights, expected[1]) and not np.triu(got.weights, 1).any()


def test_appended_columns_count_and_leak_nothing():
    """B06: three keys and a zero, equal logits: weights 1/4, output Σv / 4; both appended: S + 2; causal holds."""
    oracle, _ = attention(2, 1, add_zero_attn=True)
    with torch.no_grad():
        oracle.in_proj_weight[:4] = 0
        oracle.in_proj_weight[4:] = torch.eye(2)
        oracle.in_proj_bias.zero_()
        oracle.out_proj.weight.copy_(torch.eye(2))
        oracle.out_proj.bias.zero_()
    module, x = jaxattn.from_torch(oracle), normal(1, 3, 2)
    output, weights = run(module, x, x, x)
    assert close(weights, np.full((1, 3, 4), 0.25)) and close(output[0], np.tile(x[0].sum(0) / 4, (3, 1)))
    _, both = attention(2, 1, add_zero_attn=True, add_bias_kv=True)
    assert jax.eval_shape(both, x, x, x).weights.shape == (1, 3, 5)
    causal = ~np.tri(3, dtype=bool)
    of_x = jax.jit(jax.grad(lambda x: both(x, x, x, attn_mask=causal).output[0, 1].sum()))(x)
    assert np.asarray(of_x[0, :2]).any(-1).all() and not np.asarray(of_x[0, 2]).any()
