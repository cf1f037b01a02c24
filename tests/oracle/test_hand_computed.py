"""Numbers small enough for paper."""

import math

import pytest
import torch
from torch import Tensor, nn

import torchref
from torchref.core.dot_product import dot_product_attention
from torchref.core.heads import merge_heads, split_heads


def set_linear(linear: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    """A wrong shape must not be broadcast into place."""
    assert linear.weight.shape == weight.shape
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(torch.zeros_like(linear.bias) if bias is None else bias)


def test_equal_logits_give_uniform_weights_and_the_mean_of_v() -> None:
    q = torch.zeros(5, 2, 11, dtype=torch.float64)
    k, v = torch.randn(7, 2, 11, dtype=torch.float64), torch.randn(7, 2, 13, dtype=torch.float64)
    output, weights = dot_product_attention(q, k, v)
    assert weights.shape == (2, 5, 7)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 7))
    torch.testing.assert_close(output, v.mean(0).expand(5, 2, 13))


def test_logits_0_and_log_3_give_a_quarter_and_three_quarters() -> None:
    q = torch.ones(1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).reshape(2, 1, 1)
    v = torch.tensor([[4.0, 0.0], [8.0, 16.0]], dtype=torch.float64).reshape(2, 1, 2)
    output, weights = dot_product_attention(q, k, v)
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    torch.testing.assert_close(output.flatten(), torch.tensor([7.0, 12.0], dtype=torch.float64))


@pytest.mark.parametrize(("scale", "expected"), [(None, 1 / math.sqrt(16)), (0.5, 0.5), (1.0, 1.0)])
def test_scale_multiplies_the_logits_and_defaults_to_one_over_root_head_width(
    scale: float | None, expected: float
) -> None:
    q = torch.ones(1, 1, 16, dtype=torch.float64)
    k = torch.zeros(2, 1, 16, dtype=torch.float64)
    k[1, 0, 0] = 1.0
    weights = dot_product_attention(q, k, k, scale=scale)[1].flatten()
    torch.testing.assert_close((weights[1] / weights[0]).log().item(), expected)


def test_bias_is_added_after_the_scale_and_before_the_mask() -> None:
    q = torch.ones(1, 1, 4, dtype=torch.float64)
    k = torch.zeros(3, 1, 4, dtype=torch.float64)
    bias = torch.tensor([0.0, math.log(3.0), 100.0], dtype=torch.float64)
    weights = dot_product_attention(q, k, k, mask=torch.tensor([1, 1, 0]), bias=bias)[1].flatten()
    torch.testing.assert_close(weights, torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64))


def test_multi_head_scales_by_the_head_width_not_the_model_width() -> None:
    module = torchref.MultiHeadSelfAttention(8, 4, dtype=torch.float64)  # H = 2
    for linear in (module.Wq, module.Wk, module.Wv, module.W_o):
        set_linear(linear, torch.eye(8))
    x = torch.zeros(2, 8, dtype=torch.float64)
    x[0, 0], x[1, 0] = 1.0, 3.0
    weights = module(x)[1]
    torch.testing.assert_close((weights[0, 0, 1] / weights[0, 0, 0]).log().item(), (3.0 - 1.0) / math.sqrt(2))
    torch.testing.assert_close(weights[1:], torch.full((3, 2, 2), 0.5, dtype=torch.float64))


def test_scaled_dot_product_scales_by_the_model_width() -> None:
    module = torchref.ScaledDotProductSelfAttention(9, dtype=torch.float64)
    for linear in (module.W_q, module.W_k, module.W_v):
        set_linear(linear, torch.eye(9))
    x = torch.zeros(2, 9, dtype=torch.float64)
    x[0, 0], x[1, 0] = 1.0, 3.0
    output, weights = module(x)
    torch.testing.assert_close((weights[0, 1] / weights[0, 0]).log().item(), (3.0 - 1.0) / 3.0)
    torch.testing.assert_close(output[0, 0].item(), (weights[0, 0] + 3.0 * weights[0, 1]).item())


def test_heads_are_consecutive_slices() -> None:
    x = torch.arange(5 * 6).reshape(5, 6)
    heads = split_heads(x, 3)
    assert heads.shape == (5, 3, 2)
    for n in range(3):
        assert torch.equal(heads[:, n], x[:, 2 * n : 2 * n + 2])
    assert torch.equal(merge_heads(heads), x)


def test_head_n_reads_rows_nH_of_each_projection_and_writes_columns_nH_of_the_output() -> None:
    """Labels instead of random numbers: value feature f of every position is f + 1, and W_o passes them through."""
    module = torchref.MultiHeadCrossAttention(6, 3, kv_dim=5, dtype=torch.float64)
    set_linear(module.Wv, torch.zeros(6, 5), torch.arange(1.0, 7.0))
    set_linear(module.W_o, torch.eye(6))
    set_linear(module.Wq, torch.zeros(6, 6), torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]))  # only head 1 asks
    w_k = torch.zeros(6, 5)
    w_k[2, 4] = 1.0
    set_linear(module.Wk, w_k)
    context = torch.zeros(7, 5, dtype=torch.float64)
    context[3, 4] = 20.0
    output, weights = module(torch.randn(2, 6, dtype=torch.float64), context)
    torch.testing.assert_close(output, torch.arange(1.0, 7.0, dtype=torch.float64).expand(2, 6))
    uniform = torch.full((2, 7), 1 / 7, dtype=torch.float64)
    torch.testing.assert_close(weights[0], uniform)
    torch.testing.assert_close(weights[2], uniform)
    assert weights[1, :, 3].min() > 0.99


def test_grouped_heads_are_repeated_not_tiled() -> None:
    q, k = torch.randn(5, 4, 11), torch.randn(7, 2, 11)
    v = torch.tensor([0.0, 1.0]).reshape(1, 2, 1).expand(7, 2, 1)
    output, _ = dot_product_attention(q, k, v)
    torch.testing.assert_close(output[..., 0], torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(5, 4))


def test_grouped_heads_equal_repeated_keys_and_values() -> None:
    q = torch.randn(3, 5, 8, 11, dtype=torch.float64)
    k, v = torch.randn(3, 7, 2, 11, dtype=torch.float64), torch.randn(3, 7, 2, 13, dtype=torch.float64)
    output, weights = dot_product_attention(q, k, v)
    for n in range(8):
        own = dot_product_attention(q[:, :, n : n + 1], k[:, :, n // 4 : n // 4 + 1], v[:, :, n // 4 : n // 4 + 1])
        torch.testing.assert_close(output[:, :, n : n + 1], own[0], rtol=0, atol=1e-13)
        torch.testing.assert_close(weights[:, n : n + 1], own[1], rtol=0, atol=1e-13)


def test_heads_that_do_not_divide_are_refused_by_name() -> None:
    for make in (torchref.MultiHeadSelfAttention, torchref.MultiHeadCrossAttention):
        with pytest.raises(ValueError, match="num_heads=6, embed_dim=64"):
            make(64, 6)
        with pytest.raises(ValueError, match="num_heads=0"):
            make(64, 0)
    with pytest.raises(ValueError, match="heads of `k` must divide"):
        dot_product_attention(torch.ones(5, 4, 11), torch.ones(7, 3, 11), torch.ones(7, 3, 11))
