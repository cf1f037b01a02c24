"""Positions against math.sin and math.cos, one element at a time."""

import math

import pytest
import torch

import torchref


@pytest.mark.parametrize("embed_dim", [1, 2, 8, 17])
def test_each_element(embed_dim: int) -> None:
    x = torch.randn(3, 7, embed_dim, dtype=torch.float64)
    added = torchref.SinusoidalPositionalEncoding(embed_dim)(x) - x
    for t in range(7):
        for feature in range(embed_dim):
            angle = t / 10000 ** (2 * (feature // 2) / embed_dim)
            expected = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            for b in range(3):
                assert abs(added[b, t, feature].item() - expected) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_late_positions_keep_their_angle_in_every_dtype(dtype: torch.dtype) -> None:
    """bfloat16 has no 257: an angle computed in it would be that of position 256."""
    module = torchref.SinusoidalPositionalEncoding(4).half().to(dtype)
    output = module(torch.zeros(4999, 4, dtype=dtype))
    assert output.dtype == dtype
    for t in (0, 255, 256, 257, 4095, 4998):
        for feature, function in enumerate((math.sin, math.cos)):
            assert abs(output[t, feature].item() - function(t)) <= torch.finfo(dtype).eps


def test_any_batch_axes() -> None:
    module = torchref.SinusoidalPositionalEncoding(17)
    x = torch.randn(2, 3, 5, 17)
    output = module(x)
    assert output.shape == x.shape
    assert torch.equal(module(x[1, 2]), output[1, 2])
    assert module(x[:0]).shape == (0, 3, 5, 17)
    assert module(x[..., :0, :]).shape == (2, 3, 0, 17)


def test_nothing_is_learned_or_saved() -> None:
    module = torchref.SinusoidalPositionalEncoding(17, max_len=11)
    assert not module.state_dict() and not list(module.parameters())
    assert (module.embed_dim, module.max_len) == (17, 11)


def test_length_and_width_are_checked() -> None:
    module = torchref.SinusoidalPositionalEncoding(17, max_len=5)
    assert module(torch.ones(5, 17)).shape == (5, 17)
    with pytest.raises(ValueError, match="max_len=5, got length 6"):
        module(torch.ones(6, 17))
    with pytest.raises(ValueError, match="embed_dim=17"):
        module(torch.ones(5, 1))
