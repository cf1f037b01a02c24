"""MyAttn against the code people have: one example, torch.cat and torch.bmm."""

import pytest
import torch
from torch import Tensor

import torchref


def classic(module: torchref.MyAttn, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Q [1, 1, query], K [1, 1, key], V [1, S, value]; only example 0 is read, as in the tutorials."""
    weights = torch.softmax(module.attn(torch.cat((Q[0], K[0]), 1)), dim=1)
    applied = torch.bmm(weights.unsqueeze(0), V)
    output = torch.cat((Q[0], applied[0]), 1)
    return module.attn_combine(output).unsqueeze(0), weights


def inputs(module: torchref.MyAttn, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    widths = ((1, module.query_size), (1, module.key_size), (module.value_size1, module.value_size2))
    q, k, v = (torch.randn(batch, *shape, dtype=torch.float64) for shape in widths)
    return q, k, v


def test_classic_sizes() -> None:
    module = torchref.MyAttn(32, 32, 32, 64, 32, dtype=torch.float64)
    Q, K, V = inputs(module, 1)
    output, weights = module(Q, K, V)
    expected_output, expected_weights = classic(module, Q, K, V)
    assert output.shape == expected_output.shape == (1, 1, 32)
    assert weights.shape == expected_weights.shape == (1, 32)
    torch.testing.assert_close(output, expected_output, rtol=0, atol=1e-13)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-13)


def test_a_batch_is_its_examples() -> None:
    module = torchref.MyAttn(17, 19, 7, 13, 11, dtype=torch.float64)
    Q, K, V = inputs(module, 3)
    output, weights = module(Q, K, V)
    for b in range(3):
        expected_output, expected_weights = classic(module, Q[b : b + 1], K[b : b + 1], V[b : b + 1])
        torch.testing.assert_close(output[b : b + 1], expected_output, rtol=0, atol=1e-13)
        torch.testing.assert_close(weights[b : b + 1], expected_weights, rtol=0, atol=1e-13)


def test_unbatched_shapes() -> None:
    module = torchref.MyAttn(17, 19, 7, 13, 11, dtype=torch.float64)
    output, weights = module(*(x[0] for x in inputs(module, 1)))
    assert output.shape == (1, 11) and weights.shape == (7,)


def test_parameters_are_named_and_shaped_as_in_the_original() -> None:
    shapes = {name: tuple(x.shape) for name, x in torchref.MyAttn(17, 19, 7, 13, 11).state_dict().items()}
    assert shapes == {
        "attn.weight": (7, 36),
        "attn.bias": (7,),
        "attn_combine.weight": (11, 30),
        "attn_combine.bias": (11,),
    }


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("V", (3, 5, 13), "value_size1=7"),
        ("V", (3, 7, 11), "value_size2=13"),
        ("V", (7, 13), "same batch axes"),
        ("V", (1, 7, 13), "same batch axes"),
        ("Q", (3, 2, 17), "one row"),
        ("K", (3, 2, 19), "one row"),
        ("Q", (3, 1, 16), "query_size=17"),
        ("Q", (17,), "query_size=17"),
        ("K", (3, 1, 20), "key_size=19"),
    ],
)
def test_what_does_not_fit_is_a_value_error(name: str, shape: tuple[int, ...], message: str) -> None:
    module = torchref.MyAttn(17, 19, 7, 13, 11)
    arguments = {"Q": torch.ones(3, 1, 17), "K": torch.ones(3, 1, 19), "V": torch.ones(3, 7, 13)}
    with pytest.raises(ValueError, match=message):
        module(**arguments | {name: torch.ones(shape)})


def test_widths_that_only_fit_together_are_refused() -> None:
    """Concatenated they have the right total, so torch would accept them."""
    with pytest.raises(ValueError, match="`Q`"):
        torchref.MyAttn(17, 19, 7, 13, 11)(torch.ones(1, 19), torch.ones(1, 17), torch.ones(7, 13))
