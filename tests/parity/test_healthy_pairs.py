"""Correct twins pass, in every dtype."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
import torchref
from jaxattn.parity import compare

B, T, S, N, H = 3, 5, 7, 2, 11
D = N * H

BLOCKED = np.array([[0, 1, 0, 0, 1, 0, 0], [1, 1, 1, 0, 0, 0, 1]] * 2 + [[0] * 7], bool)
PADDING = np.arange(S) >= np.array([2, 7, 4])[:, None]
BIAS = np.where(BLOCKED, -math.inf, np.linspace(-1, 1, T * S).reshape(T, S))
PER_HEAD = np.stack([np.roll(BLOCKED, shift, axis=1) for shift in range(B * N)])
KEEP = ~PADDING[:, None, :] & ~BLOCKED


def check(torch_module: nn.Module, *inputs, **kwargs):
    report = compare(torch_module, jaxattn.from_torch(torch_module), *inputs, **kwargs)
    report.assert_ok()
    assert not report.notes
    return report


def test_my_attn(randomised, draw) -> None:
    module = randomised(torchref.MyAttn(D, 13, S, 17, 19))
    report = check(module, draw(B, 1, D), draw(B, 1, 13), draw(B, S, 17))
    assert [row.what for row in report.rows] == [
        "state dict, bit for bit",
        "output",
        "weights",
        *(f"gradient of {name}" for name in ("Q", "K", "V")),
        *(f"gradient of {name}" for name in ("attn.weight", "attn.bias", "attn_combine.weight", "attn_combine.bias")),
    ]
    assert report.row("weights").shape == (B, S)


def test_scaled_dot_product_with_an_empty_row(randomised, draw) -> None:
    keep = np.ones((B, T, T), int)
    keep[1, 2] = 0
    check(randomised(torchref.ScaledDotProductSelfAttention(D)), draw(B, T, D), mask=keep)


def test_multi_head_self_attention_lists_the_key_bias_apart(randomised, draw) -> None:
    report = check(randomised(torchref.MultiHeadSelfAttention(D, N)), draw(B, T, D))
    assert [row.what for row in report.rows if row.zero] == ["gradient of Wk.bias"]
    assert "zero up to rounding" in str(report)


def test_multi_head_cross_attention(randomised, draw) -> None:
    check(randomised(torchref.MultiHeadCrossAttention(D, N, 13)), draw(B, T, D), draw(B, S, 13), KEEP)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sinusoidal_has_no_parameters(dtype: type, randomised, draw) -> None:
    report = check(torchref.SinusoidalPositionalEncoding(D), draw(B, T, D).astype(dtype))
    assert report.dtype == np.dtype(dtype).name
    assert [row.what for row in report.rows] == ["state dict, bit for bit", "output", "gradient of x"]
    assert report.rows[0].shape == (0,)


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": BLOCKED, "key_padding_mask": PADDING & (np.arange(S) > 4), "average_attn_weights": False},
        {"attn_mask": BIAS, "need_weights": False},
        {"attn_mask": PER_HEAD, "key_padding_mask": np.zeros((B, S), np.float32)},
    ],
    ids=["bool-2d-and-padding", "float-with-inf-no-weights", "bool-3d-and-float-padding"],
)
def test_multihead_attention(masks: dict, randomised, draw) -> None:
    module = randomised(nn.MultiheadAttention(D, N, kdim=13, vdim=17, batch_first=True))
    report = check(module, draw(B, T, D), draw(B, S, 13), draw(B, S, 17), **masks)
    floating = [name for name, mask in masks.items() if getattr(mask, "dtype", None) in (np.float32, np.float64)]
    assert all(report.row(f"gradient of {name}").ok for name in floating)
    assert len(report.rows) == (3 if masks.get("need_weights", True) else 2) + 3 + len(floating) + 6


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer_encoder(randomised, draw) -> None:
    layer = nn.TransformerEncoderLayer(D, N, 29, activation="gelu", batch_first=True, norm_first=True)
    module = randomised(nn.TransformerEncoder(layer, 1, nn.LayerNorm(D)))
    padding = np.arange(T) >= np.array([2, 5, 4])[:, None]
    check(module, draw(B, T, D), src_key_padding_mask=padding)


def test_multi_head_in_bfloat16(randomised, draw) -> None:
    report = check(randomised(torchref.MultiHeadSelfAttention(D, N), torch.bfloat16), draw(B, T, D))
    assert report.dtype == "bfloat16" and report.row("output").torch_error is not None


def test_filled_masks_in_float16(randomised, draw) -> None:
    keep = np.ones((T, T), bool)
    keep[3] = False
    report = check(randomised(torchref.ScaledDotProductSelfAttention(D), torch.float16), draw(B, T, D), keep)
    assert report.dtype == "float16"


def test_encoder_layer_in_bfloat16(randomised, draw) -> None:
    module = randomised(nn.TransformerEncoderLayer(D, N, 29), torch.bfloat16)
    check(module, draw(T, B, D))


def test_empty_batch(randomised, draw) -> None:
    """Both sides compute it, and it proves nothing."""
    oracle = randomised(torchref.ScaledDotProductSelfAttention(D))
    report = jaxattn.parity.compare(oracle, jaxattn.from_torch(oracle), draw(0, T, D))
    assert report.row("output").shape == (0, T, D) and not report.ok
    assert all("nothing to compare" in failure for failure in report.failures)


def test_float64_modules_have_only_the_algorithm_criterion(randomised, draw) -> None:
    import jax

    module = randomised(nn.Linear(D, 7), torch.float64)
    with jax.enable_x64(True):
        report = check(module, draw(B, D))
    assert report.dtype == "float64"
    assert report.row("output").error is None
    assert report.row("output").error_float64 is not None


def test_cotangents_are_no_inputs_of_the_same_seed() -> None:
    """The gradient of a norm along its own input is 0: drawn alike, a comparison would look at nothing else."""
    module = nn.LayerNorm(D, elementwise_affine=False)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((B, D)).astype(np.float32)
        report = compare(module, jaxattn.from_torch(module), x, seed=seed)
        report.assert_ok()
        (row,) = [row for row in report.rows if row.kind == "gradient"]
        assert row.allowed_float64 is not None and row.allowed_float64 > 1e-12  # 1e-11 times the largest gradient
