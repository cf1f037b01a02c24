"""What all modules of the oracle share: batch axes, dtypes, empty inputs, refused shapes, stored arguments."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchref

B, T, S, N, H, V, D = 3, 5, 7, 4, 11, 13, 17


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


MODULES: list[tuple[str, Callable[[torch.dtype], nn.Module], list[tuple[int, ...]], list[tuple[int, ...]]]] = [
    (
        "my_attn",
        lambda dtype: torchref.MyAttn(D, 19, S, V, 23, dtype=dtype),
        [(1, D), (1, 19), (S, V)],
        [(1, 23), (S,)],
    ),
    (
        "scaled_dot_product",
        lambda dtype: torchref.ScaledDotProductSelfAttention(D, dtype=dtype),
        [(T, D)],
        [(T, D), (T, T)],
    ),
    (
        "multi_head/self",
        lambda dtype: torchref.MultiHeadSelfAttention(N * H, N, dtype=dtype),
        [(T, N * H)],
        [(T, N * H), (N, T, T)],
    ),
    (
        "multi_head/cross",
        lambda dtype: torchref.MultiHeadCrossAttention(N * H, N, D, dtype=dtype),
        [(T, N * H), (S, D)],
        [(T, N * H), (N, T, S)],
    ),
]
each_module = pytest.mark.parametrize(
    ("make", "shapes", "results"), [row[1:] for row in MODULES], ids=[row[0] for row in MODULES]
)


@each_module
def test_any_batch_axes_equal_example_by_example(
    make: Callable[[torch.dtype], nn.Module], shapes: list[tuple[int, ...]], results: list[tuple[int, ...]]
) -> None:
    module = make(torch.float64)
    inputs = [double(2, B, *shape) for shape in shapes]
    both = module(*inputs)
    assert [tuple(x.shape) for x in both] == [(2, B, *shape) for shape in results]
    one_axis = module(*(x.flatten(0, 1) for x in inputs))
    for i in range(2):
        for j in range(B):
            single = module(*(x[i, j] for x in inputs))
            for result, flat, own in zip(both, one_axis, single, strict=True):
                torch.testing.assert_close(result[i, j], own, rtol=0, atol=1e-13)
                torch.testing.assert_close(flat[i * B + j], own, rtol=0, atol=1e-13)


@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_empty_batches(
    make: Callable[[torch.dtype], nn.Module],
    shapes: list[tuple[int, ...]],
    results: list[tuple[int, ...]],
    dtype: torch.dtype,
) -> None:
    module = make(dtype)
    inputs = [torch.randn(B, *shape).to(dtype) for shape in shapes]
    found = module(*inputs)
    truth = module.to(torch.float64)(*(x.double() for x in inputs))
    for result, expected in zip(found, truth, strict=True):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)
    empty = module.to(dtype)(*(x[:0] for x in inputs))
    assert [tuple(x.shape) for x in empty] == [(0, *shape) for shape in results]


def test_empty_sequences() -> None:
    module = torchref.MultiHeadCrossAttention(N * H, N, D)
    output, weights = module(torch.randn(B, 0, N * H), torch.randn(B, S, D))
    assert output.shape == (B, 0, N * H) and weights.shape == (B, N, 0, S)
    output, weights = module(torch.randn(B, T, N * H), torch.randn(B, 0, D))
    assert weights.shape == (B, N, T, 0)
    torch.testing.assert_close(output, module.W_o.bias.expand(B, T, N * H))


def test_wrong_widths_and_batches_are_value_errors() -> None:
    module = torchref.MultiHeadCrossAttention(N * H, N, D)
    with pytest.raises(ValueError, match="`context`.*kv_dim=17"):
        module(torch.ones(B, T, N * H), torch.ones(B, S, N * H))
    with pytest.raises(ValueError, match="`x`.*embed_dim=44"):
        module(torch.ones(B, T, D), torch.ones(B, S, D))
    with pytest.raises(ValueError, match="same batch axes"):
        module(torch.ones(B, T, N * H), torch.ones(1, S, D))
    with pytest.raises(ValueError, match="`x`"):
        torchref.ScaledDotProductSelfAttention(D)(torch.ones(D))


def test_constructor_arguments_are_attributes() -> None:
    my_attn = torchref.MyAttn(2, 3, 5, 7, 11)
    assert [my_attn.query_size, my_attn.key_size, my_attn.value_size1] == [2, 3, 5]
    assert [my_attn.value_size2, my_attn.output_size] == [7, 11]
    cross = torchref.MultiHeadCrossAttention(6, 3, 5)
    assert (cross.embed_dim, cross.num_heads, cross.kv_dim) == (6, 3, 5)
    assert torchref.MultiHeadCrossAttention(6, 3).kv_dim == 6
    assert torchref.MultiHeadSelfAttention(6, 3).num_heads == 3
    assert torchref.ScaledDotProductSelfAttention(6).embed_dim == 6
