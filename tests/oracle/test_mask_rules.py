"""The mask rule of the brief's modules: 0 = blocked, any dtype, a blocked row attends uniformly, ranks by meaning."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchref
from torchref.core.dot_product import dot_product_attention
from torchref.core.masks import blocked_keys, fill_value, insert_head_axis

B, L, S, N, D = 3, 5, 7, 4, 44
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
CAUSAL = torch.ones(L, L).tril()


def self_attention() -> torchref.MultiHeadSelfAttention:
    return torchref.MultiHeadSelfAttention(D, N, dtype=torch.float64)


def scaled_dot_product() -> torchref.ScaledDotProductSelfAttention:
    return torchref.ScaledDotProductSelfAttention(D, dtype=torch.float64)


def inputs(*batch: int) -> Tensor:
    return torch.randn(*batch, L, D, dtype=torch.float64)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float64, torch.float16, torch.bfloat16]
)
@pytest.mark.parametrize("make", [self_attention, scaled_dot_product])
def test_zero_blocks_in_every_dtype(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> None:
    x = inputs(B)
    weights = make()(x, CAUSAL.to(dtype))[1]
    blocked = (CAUSAL == 0).expand(weights.shape)
    assert weights[blocked].abs().max() == 0.0
    assert weights[~blocked].min() > 0.0


def test_any_non_zero_number_attends() -> None:
    module, x = self_attention(), inputs(B)
    expected = module(x, CAUSAL.bool())[0]
    assert torch.equal(module(x, CAUSAL * 0.25)[0], expected)
    assert torch.equal(module(x, (CAUSAL * -3).long())[0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_value_is_finite_in_every_dtype(dtype: torch.dtype) -> None:
    assert fill_value(dtype) == (-65504.0 if dtype == torch.float16 else -1e9)
    assert torch.tensor(fill_value(dtype), dtype=dtype).isfinite()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [self_attention, scaled_dot_product])
def test_fully_blocked_row_attends_uniformly(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> None:
    module = make().to(dtype)
    x, mask = inputs(B).to(dtype), torch.ones(B, L, L, dtype=torch.bool)
    mask[1, 2] = False
    output, weights = module(x, mask)
    assert output.isfinite().all() and weights.isfinite().all()
    torch.testing.assert_close(weights[1, ..., 2, :], torch.full_like(weights[1, ..., 2, :], 1 / L))
    assert torch.equal(weights[0], module(x, None)[1][0])


@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_fully_blocked_row_has_finite_gradients(empty_row: str) -> None:
    q, k, v = (torch.randn(L, N, 11, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = CAUSAL.bool().clone()
    mask[2] = False
    output, weights = dot_product_attention(q, k, v, mask, empty_row=empty_row)
    first = torch.autograd.grad(output.square().sum() + weights.square().sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(torch.cat(first).square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (*first, *second))


def test_empty_row_policies() -> None:
    q, k, v = (torch.randn(L, N, 11, dtype=torch.float64) for _ in range(3))
    mask = CAUSAL.bool().clone()
    mask[2] = False
    rows = {policy: dot_product_attention(q, k, v, mask, empty_row=policy) for policy in ("zero", "uniform", "nan")}
    assert rows["zero"][1][:, 2].abs().max() == 0.0 and rows["zero"][0][2].abs().max() == 0.0
    torch.testing.assert_close(rows["uniform"][1][:, 2], torch.full((N, L), 1 / L, dtype=torch.float64))
    torch.testing.assert_close(rows["uniform"][0][2], v.mean(0))
    assert rows["nan"][1][:, 2].isnan().all() and rows["nan"][0][2].isnan().all()
    others = torch.tensor([0, 1, 3, 4])
    for output, weights in rows.values():
        torch.testing.assert_close(output[others], rows["zero"][0][others], rtol=0, atol=1e-14)
        torch.testing.assert_close(weights[:, others], rows["zero"][1][:, others], rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="empty_row"):
        dot_product_attention(q, k, v, mask, empty_row="mean")


@pytest.mark.parametrize("value", [-1e9, -1.0, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_additive_mask_is_recognised(value: float, dtype: torch.dtype) -> None:
    mask = torch.zeros(L, L).masked_fill(CAUSAL == 0, max(value, -6e4) if value != -math.inf else value).to(dtype)
    with pytest.raises(ValueError, match="looks additive"):
        self_attention()(inputs(B), mask)


def test_minus_zero_is_zero() -> None:
    assert blocked_keys(torch.tensor([[-0.0, 1.0]]), torch.Size((1, 2))).tolist() == [[True, False]]


@pytest.mark.parametrize("num_batch_axes", [0, 1, 2])
def test_each_rank_means_what_the_rule_says(num_batch_axes: int) -> None:
    batch = (2, B)[2 - num_batch_axes :]
    module, x = self_attention(), inputs(*batch)
    by_head = torch.rand(*batch, N, L, L) < 0.6
    by_example = torch.rand(*batch, L, L) < 0.6
    by_position = torch.rand(L, L) < 0.6
    for mask, full in (
        (by_head, by_head),
        (by_example, by_example.unsqueeze(-3).expand(by_head.shape)),
        (by_position, by_position.expand(by_head.shape)),
        (by_position[0], by_position[0].expand(by_head.shape)),
    ):
        has_key = full.any(-1, keepdim=True)
        weights = module(x, mask)[1]
        assert torch.equal(weights > 0, torch.where(has_key, full, True))


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ((2, B), (B, L, L)),
        ((2, B), (1, 2, B, N, L, L)),
        ((B,), (1, B, N, L, L)),
        ((), (1, N, L, L)),
    ],
)
def test_other_ranks_are_refused(batch: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`mask` must have rank"):
        self_attention()(inputs(*batch), torch.ones(shape))


@pytest.mark.parametrize("shape", [(B, L), (L, L + 1), (B + 1, L, L), (B, N + 1, L, L), (L, 2)])
def test_shapes_that_do_not_broadcast_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`mask` must broadcast"):
        self_attention()(inputs(B), torch.ones(shape))


def test_a_mask_never_enlarges_the_result() -> None:
    with pytest.raises(ValueError, match="`mask` must broadcast"):
        torchref.ScaledDotProductSelfAttention(D)(torch.ones(L, D), torch.ones(B, L, L))
    with pytest.raises(ValueError, match="`mask` must broadcast"):
        self_attention()(inputs(1), torch.ones(B, L, L))
    with pytest.raises(ValueError, match="`bias` must broadcast"):
        q = torch.ones(1, N, 11)
        dot_product_attention(q, q, q, bias=torch.ones(N, L, 1))


def test_padding_mask_blocks_key_columns_for_every_query_and_head() -> None:
    module = torchref.MultiHeadCrossAttention(D, N, 17, dtype=torch.float64)
    padding = torch.arange(S) < torch.tensor([2, 7, 4])[:, None]
    weights = module(inputs(B), torch.randn(B, S, 17, dtype=torch.float64), padding[:, None, None, :])[1]
    assert torch.equal(weights > 0, padding[:, None, None, :].expand(B, N, L, S))


def test_masks_stay_with_their_example() -> None:
    """A mask laid out by tile instead of repeat would show another example's pattern."""
    module, x, mask = self_attention(), inputs(B), torch.rand(B, L, L) < 0.5
    weights = module(x, mask)[1]
    for b in range(B):
        torch.testing.assert_close(weights[b], module(x[b], mask[b])[1], rtol=0, atol=1e-13)


def test_masked_keys_have_no_influence() -> None:
    module, x = self_attention(), inputs(B)
    changed = x.clone()
    changed[:, -1] = 1e6
    mask = torch.arange(L) < L - 1
    torch.testing.assert_close(module(changed, mask)[0][:, :-1], module(x, mask)[0][:, :-1], rtol=0, atol=1e-13)


def test_insert_head_axis_leaves_broadcast_axes_alone() -> None:
    assert insert_head_axis(torch.ones(1, 1, S), 1).shape == (1, 1, 1, S)
    assert insert_head_axis(torch.ones(B, 1, 1, S), 1).shape == (B, 1, 1, S)
    assert insert_head_axis(torch.ones(()), 1).shape == ()
