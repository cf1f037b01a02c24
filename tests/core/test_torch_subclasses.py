"""Subclasses of torch's tensor are read by what they mean, or refused by name; never by their memory."""

import warnings

import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.masked import masked_tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

import jaxattn
from jaxattn._checks import ConversionError
from jaxattn._tensors import as_numpy, causal_bias, tensor_problem
from jaxattn.core.mask_arrays import as_array

from ..inputs import generator

KINDS = {"upper left": (causal_upper_left, 0), "lower right": (causal_lower_right, 1)}
SHAPES = {"longer keys": (3, 5), "square": (5, 5)}


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(generator("subclasses").standard_normal(shape))


def made(kind: str, shape: str) -> tuple[CausalBias, torch.Tensor, int, int]:
    """(the bias, the same as booleans with True = may attend, T, S)."""
    T, S = SHAPES[shape]
    function, lower_right = KINDS[kind]
    return function(T, S), torch.ones(T, S).tril((S - T) * lower_right).bool(), T, S


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_takes_a_causal_bias_as_torch(kind: str, shape: str) -> None:
    bias, visible, T, S = made(kind, shape)
    q, k, v = normal(2, 3, T, 4).float(), normal(2, 3, S, 4).float(), normal(2, 3, S, 7).float()
    expected = nn.functional.scaled_dot_product_attention(q, k, v, visible)
    found = jaxattn.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    q, k, v = (x.transpose(1, 2).numpy() for x in (q, k, v))
    found = jaxattn.dot_product_attention(q, k, v, mask=bias).output
    np.testing.assert_allclose(found, expected.transpose(1, 2), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_mirrors_of_torch_take_a_causal_bias(kind: str, shape: str) -> None:
    bias, visible, T, S = made(kind, shape)
    theirs = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x, y = normal(3, T, 4).float(), normal(3, S, 4).float()
    expected, weights = theirs(x, y, y, attn_mask=~visible)
    found = jaxattn.from_torch(theirs)(x, y, y, attn_mask=bias)
    np.testing.assert_allclose(found.output, expected.detach(), atol=1e-6)
    np.testing.assert_allclose(found.weights, weights.detach(), atol=1e-6)


def test_layers_take_a_causal_bias_under_their_names_for_masks() -> None:
    with warnings.catch_warnings(action="ignore"):
        theirs = nn.Transformer(4, 2, 1, 1, 5, batch_first=True).eval()
    source, target = normal(2, 5, 4).float(), normal(2, 3, 4).float()
    masks = {"src_mask": (5, 5), "tgt_mask": (3, 3), "memory_mask": (3, 5)}
    expected = theirs(source, target, **{n: ~torch.ones(s).tril(s[1] - s[0]).bool() for n, s in masks.items()})
    biases = {name: causal_lower_right(*shape) for name, shape in masks.items()}
    np.testing.assert_allclose(jaxattn.from_torch(theirs)(source, target, **biases), expected.detach(), atol=1e-5)


def test_a_causal_bias_for_other_lengths_is_refused() -> None:
    q, k = normal(2, 3, 4), normal(2, 5, 4)
    with pytest.raises(ValueError, match="`attn_mask`, a CausalBias, must be made for the lengths"):
        jaxattn.scaled_dot_product_attention(q.float(), k.float(), k.float(), attn_mask=causal_upper_left(3, 4))
    module = jaxattn.from_torch(nn.MultiheadAttention(4, 2, batch_first=True).eval())
    with pytest.raises(ValueError, match="`attn_mask` must be"):
        module(q, k, k, attn_mask=causal_upper_left(3, 4))


class Attention(nn.Module):
    def forward(self, q, k, v, attn_mask):
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)


class Twin(nnx.Module):
    def __call__(self, q, k, v, attn_mask):
        return jaxattn.scaled_dot_product_attention(q, k, v, attn_mask)


@pytest.mark.parametrize("lower_right", [False, True])
def test_compare_hands_a_causal_bias_to_both_sides(lower_right: bool) -> None:
    bias = (causal_lower_right if lower_right else causal_upper_left)(3, 5)
    arrays = normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 4)
    report = jaxattn.parity.compare(Attention(), Twin(), *arrays, attn_mask=bias)
    report.assert_ok()
    assert "gradient of attn_mask" not in [row.what for row in report.rows]


class Own(torch.Tensor):
    """A user's."""


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2)


def functional() -> torch.Tensor:
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(torch.ones(2))


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def masked() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return masked_tensor(torch.ones(2), torch.tensor([True, False]))


REFUSED = {
    "a user's": (
        lambda: torch.ones(2).as_subclass(Own),
        r"is a Own, not a plain tensor \(tests.core.\S*.Own",
    ),
    "fake": (fake, "is a fake tensor"),
    "nested": (nested, "is a nested tensor"),
    "masked": (masked, "is a masked tensor"),
    "functional": (functional, "is a functional tensor"),
    "lazy": (lambda: nn.UninitializedParameter(), "is an uninitialised parameter"),
    "causal bias": (lambda: causal_upper_left(2, 2), "is a CausalBias"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_subclasses_are_refused_by_name(kind: str) -> None:
    tensor, problem = REFUSED[kind][0](), REFUSED[kind][1]
    for read in (as_numpy, as_array):
        with pytest.raises(ConversionError, match=problem):
            read(tensor)


TRANSFORMED = {
    "vmap": lambda f: torch.vmap(f)(torch.ones(2, 3)),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(2)),
    "jvp": lambda f: torch.func.jvp(f, (torch.ones(2),), (torch.ones(2),)),
    "functionalize": lambda f: torch.func.functionalize(f)(torch.ones(2)),
}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_tensors_inside_torch_s_transformations_are_refused(how: str) -> None:
    problems = []
    TRANSFORMED[how](lambda x: problems.append(tensor_problem(x)) or x * 1)
    assert problems and "is held by a transformation of torch" in problems[0]


def test_plain_tensors_parameters_and_buffers_are_read() -> None:
    for tensor in (torch.ones(2), nn.Parameter(torch.ones(2)), nn.Buffer(torch.ones(2)), torch.ones(0), torch.ones(())):
        np.testing.assert_array_equal(as_numpy(tensor), np.ones(tensor.shape))
        assert causal_bias(tensor) is None
