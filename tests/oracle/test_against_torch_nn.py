"""torchref against torch's own attention: F.scaled_dot_product_attention and nn.MultiheadAttention, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchref
from torchref.core.dot_product import dot_product_attention
from torchref.core.plain_path import plain_path

B, T, S, N, H, V, D = 3, 5, 7, 4, 11, 13, 17


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def random_mask(*shape: int) -> Tensor:
    """Boolean, True = may attend; every row keeps its first key."""
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    assert not mask.all()
    return mask


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    bound = 1e-12 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("batch", [(), (B,), (2, B)], ids=["unbatched", "one-batch-axis", "two-batch-axes"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("mask_heads", [None, 1, N], ids=["no-mask", "mask-for-all-heads", "mask-by-head"])
def test_op_against_sdpa(batch: tuple[int, ...], num_kv_heads: int, mask_heads: int | None) -> None:
    q, k, v = double(*batch, T, N, H), double(*batch, S, num_kv_heads, H), double(*batch, S, num_kv_heads, V)
    mask = None if mask_heads is None else random_mask(*batch, mask_heads, T, S)
    q4, k4, v4 = (x.transpose(-2, -3).reshape(-1, x.shape[-2], x.shape[-3], x.shape[-1]) for x in (q, k, v))
    mask4 = None if mask is None else mask.reshape(-1, *mask.shape[-3:])
    expected = F.scaled_dot_product_attention(q4, k4, v4, mask4, enable_gqa=True)
    output, weights = dot_product_attention(q, k, v, mask)
    assert weights.shape == (*batch, N, T, S)
    assert_equal(output, expected.transpose(-2, -3).reshape(*batch, T, N, V))
    assert_equal(weights.sum(-1), torch.ones(*batch, N, T, dtype=torch.float64))


@pytest.mark.parametrize("scale", [None, 0.37])
def test_op_with_bias_and_scale_against_sdpa(scale: float | None) -> None:
    q, k, v, bias = double(B, T, N, H), double(B, S, N, H), double(B, S, N, V), double(B, N, T, S)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias, scale=scale
    )
    assert_equal(dot_product_attention(q, k, v, bias=bias, scale=scale)[0], expected.transpose(1, 2))


def test_op_gives_an_empty_row_zeros_as_sdpa_does() -> None:
    q, k, v = double(B, T, N, H), double(B, S, N, H), double(B, S, N, V)
    mask = random_mask(B, 1, T, S)
    mask[1, :, 2] = False
    expected = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
    output, weights = dot_product_attention(q, k, v, mask)
    assert_equal(output, expected.transpose(1, 2))
    assert output[1, 2].abs().max() == 0.0 and weights[1, :, 2].abs().max() == 0.0


def test_scaled_dot_product_against_sdpa() -> None:
    module = torchref.ScaledDotProductSelfAttention(D, dtype=torch.float64)
    x, mask = double(B, T, D), random_mask(B, T, T)
    output, weights = module(x, mask)
    assert weights.shape == (B, T, T)
    assert_equal(output, F.scaled_dot_product_attention(module.W_q(x), module.W_k(x), module.W_v(x), mask))
    assert_equal(weights @ module.W_v(x), output)


def torch_twin(
    module: torchref.MultiHeadSelfAttention | torchref.MultiHeadCrossAttention, kv_dim: int
) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the weights of `module`, packed row block by row block."""
    twin = nn.MultiheadAttention(
        module.embed_dim, module.num_heads, kdim=kv_dim, vdim=kv_dim, batch_first=True, dtype=torch.float64
    )
    weights = [module.Wq.weight, module.Wk.weight, module.Wv.weight]
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    state = {"out_proj.weight": module.W_o.weight, "out_proj.bias": module.W_o.bias}
    state["in_proj_bias"] = torch.cat([module.Wq.bias, module.Wk.bias, module.Wv.bias])
    packed = (
        {"in_proj_weight": torch.cat(weights)} if kv_dim == module.embed_dim else dict(zip(names, weights, strict=True))
    )
    twin.load_state_dict(state | packed)
    return twin.eval()


def call_twin(twin: nn.MultiheadAttention, x: Tensor, context: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """torch's polarity and mask layout: True = blocked, [B·N, T, S] with index b·N + n."""
    if mask is not None:
        mask = ~mask.unsqueeze(1).expand(-1, N, -1, -1).reshape(-1, *mask.shape[-2:])
    with plain_path():
        return twin(x, context, context, attn_mask=mask, average_attn_weights=False)


@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_self_against_torch(masked: bool) -> None:
    module = torchref.MultiHeadSelfAttention(N * H, N, dtype=torch.float64)
    x, mask = double(B, T, N * H), random_mask(B, T, T) if masked else None
    for actual, expected in zip(module(x, mask), call_twin(torch_twin(module, N * H), x, x, mask), strict=True):
        assert_equal(actual, expected)


@pytest.mark.parametrize("kv_dim", [N * H, D])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_cross_against_torch(kv_dim: int, masked: bool) -> None:
    module = torchref.MultiHeadCrossAttention(N * H, N, kv_dim, dtype=torch.float64)
    x, context, mask = double(B, T, N * H), double(B, S, kv_dim), random_mask(B, T, S) if masked else None
    expected = call_twin(torch_twin(module, kv_dim), x, context, mask)
    for actual, reference in zip(module(x, context, mask), expected, strict=True):
        assert_equal(actual, reference)


def test_multi_head_gradients_against_torch() -> None:
    module = torchref.MultiHeadSelfAttention(N * H, N, dtype=torch.float64)
    twin, x, cotangent = torch_twin(module, N * H), double(B, T, N * H), double(B, T, N * H)
    linears = (module.Wq, module.Wk, module.Wv, module.W_o)
    ours = torch.autograd.grad(
        (module(x)[0] * cotangent).sum(), [linear.weight for linear in linears] + [linear.bias for linear in linears]
    )
    packed, packed_bias, out, out_bias = torch.autograd.grad(
        (call_twin(twin, x, x, None)[0] * cotangent).sum(),
        [twin.in_proj_weight, twin.in_proj_bias, twin.out_proj.weight, twin.out_proj.bias],
    )
    expected = [*packed.chunk(3), out, *packed_bias.chunk(3), out_bias]
    for actual, reference in zip(ours, expected, strict=True):
        assert_equal(actual, reference)


def test_cross_equals_self_on_one_sequence() -> None:
    self_attention = torchref.MultiHeadSelfAttention(N * H, N, dtype=torch.float64)
    cross_attention = torchref.MultiHeadCrossAttention(N * H, N, dtype=torch.float64)
    cross_attention.load_state_dict(self_attention.state_dict())
    x = double(B, T, N * H)
    assert_equal(cross_attention(x, x)[0], self_attention(x)[0])
