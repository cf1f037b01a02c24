"""The usual slips in a forward written by hand around `dot_product_attention`, and in a norm written by hand."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

import jaxattn
from jaxattn import convert
from jaxattn.core.heads import merge_heads, split_heads
from jaxattn.parity import trace

from ..inputs import generator, randomise

B, T, N, H = 2, 5, 3, 4
D = N * H
X = generator("by hand").standard_normal((B, T, D)).astype(np.float32)
#: Neither its inverse, nor its transpose, nor causal, and no row is empty either way.
KEEP = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 1], [1, 0, 0, 1, 1], [0, 0, 1, 0, 1]], bool)


def rotated(x: Any, base: float, layout: str) -> Any:
    """[*B, N, T, H] of torch."""
    angles = torch.arange(T)[:, None] * base ** (-torch.arange(H // 2) * 2 / H)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    if layout == "halves":
        a, b = x[..., : H // 2], x[..., H // 2 :]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Block(nn.Module):
    """Rotary attention as people write it, with the kernel or with softmax; names that say nothing."""

    def __init__(self, by_hand: bool = False, rotary: bool = False):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(D, D) for _ in range(4))
        self.by_hand, self.rotary = by_hand, rotary

    def forward(self, x, keep):
        q, k, v = (part(x).view(B, -1, N, H).transpose(1, 2) for part in (self.a, self.b, self.c))
        if self.rotary:
            q, k = (rotated(y.double(), 10000.0, "halves").to(x) for y in (q, k))
        if self.by_hand:
            logits = (q @ k.transpose(-1, -2) / math.sqrt(H)).masked_fill(~keep, -math.inf)
            mixed = F.softmax(logits, dim=-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.d(mixed.transpose(1, 2).reshape(x.shape))


class FlaxBlock(nnx.Module):
    """Its port, with one slip."""

    def __init__(self, module: nn.Module, slip: str):
        parts = convert.twins(module)
        self.a, self.b, self.c, self.d = (parts[name] for name in "abcd")
        self.slip, self.rotary = slip, module.rotary

    def rotate(self, x):
        base = 500.0 if self.slip == "base" else 10000.0
        angles = jnp.arange(T)[:, None, None] * base ** (-jnp.arange(H // 2) * 2 / H)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        if self.slip == "layout":
            a, b = x[..., 0::2], x[..., 1::2]
            return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
        a, b = x[..., : H // 2], x[..., H // 2 :]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def split(self, x):
        if self.slip == "features":
            return jnp.swapaxes(x.reshape(B, T, H, N), -1, -2)
        return jnp.moveaxis(x.reshape(B, N, T, H), 1, 2) if self.slip == "no transpose" else split_heads(x, N)

    def __call__(self, x, keep):
        q, k, v = (self.split(part(x)) for part in (self.a, self.b, self.c))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        if self.slip == "swapped":
            q, k = k, q
        mask = {"forgotten": None, "inverted": ~keep, "transposed": keep.T}.get(self.slip, keep)
        scale = 1 / H if self.slip == "scale" else None
        return self.d(merge_heads(jaxattn.dot_product_attention(q, k, v, mask=mask, scale=scale).output))


def traced(slip: str, **options: bool) -> Any:
    module = randomise(Block(**options), "by hand")
    return trace(module, FlaxBlock(module, slip), X, KEEP)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("slip", "cause"),
    [
        ("forgotten", "mask ignored"),
        ("inverted", "mask polarity"),
        ("transposed", "mask axis"),
        ("swapped", "q-k-v order"),
        ("scale", "scale"),
        ("features", "heads split"),
        ("no transpose", "heads split"),
    ],
)
def test_a_slip_is_named_at_the_call(slip: str, cause: str, by_hand: bool) -> None:
    report = traced(slip, by_hand=by_hand)
    assert (report.first, str(report.cause).partition(":")[0]) == ("", cause)
    assert "dot_product_attention" in str(report.cause)


@pytest.mark.parametrize(
    ("slip", "cause", "sentence"),
    [
        ("layout", "rotary layout", "layout interleaved in Flax, halves in torch"),
        ("base", "rotary base", "base 500.0 in Flax, 10000.0 in torch"),
    ],
)
def test_rotary(slip: str, cause: str, sentence: str) -> None:
    report = traced(slip, rotary=True)
    assert str(report.cause).partition(":")[0] == cause and sentence in str(report.cause)


@pytest.mark.parametrize("options", [{}, {"by_hand": True}, {"rotary": True}])
def test_a_right_port_has_no_cause(options: dict[str, bool]) -> None:
    report = traced("", **options)
    report.assert_ok()
    assert report.cause is None


def test_two_causes_that_fit_are_both_named() -> None:
    """Of two positions, to see one key more than a causal mask allows is to see all of them."""
    module = randomise(Block(), "by hand")
    report = trace(module, FlaxBlock(module, "forgotten"), X[:, :2], np.tri(2, dtype=bool))
    assert str(report.cause).startswith("mask ignored or causal alignment: ")
    assert "without the attention mask; or " in str(report.cause) and "j ≤ i +1, torch's j ≤ i +0" in str(report.cause)


class Norm(nn.Module):
    """RMSNorm written by hand; its epsilon is an attribute, or stands in the code."""

    def __init__(self, named: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.named = named
        if named:
            self.norm_eps = 1e-5

    def forward(self, x):
        epsilon = self.norm_eps if self.named else 1e-5
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


class FlaxNorm(nnx.Module):
    def __init__(self, module: Norm):
        self.weight = nnx.Param(jnp.asarray(module.weight.detach().numpy()))

    def __call__(self, x):
        return self.weight[...] * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("named", [True, False])
def test_epsilon_of_an_rmsnorm(named: bool) -> None:
    module = randomise(Norm(named), "norm")
    report = trace(module, FlaxNorm(module), X)
    assert str(report.cause) == "epsilon: Flax's result has epsilon 1e-06, torch's is 1e-05"
