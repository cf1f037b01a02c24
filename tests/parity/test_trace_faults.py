"""Planted faults: each is named, and found at the place where it was planted."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from torch import nn

import torchref
from jaxattn import convert
from jaxattn.parity import trace

from ..inputs import randomise
from . import wrong_twins as wrong
from .plants import (
    B,
    D,
    H,
    N,
    S,
    T,
    Tied,
    copied,
    draw,
    encoder,
    feed_forward,
    grouped,
    head_blocks,
    in_bfloat16,
    kind,
    one_ulp,
    self_attention,
    sequential,
    setting,
    swapped,
    tiled,
    torch_attention,
    untied,
    weight,
)

CAUSAL = np.tri(T, dtype=int)
HALF = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 1], [1, 0, 0, 1, 1], [0, 0, 1, 0, 1]])
EMPTY = np.concatenate([HALF[:4], np.zeros((1, T), int)])
PADDING = np.arange(T) >= np.array([2, 5, 4])[:, None]
#: torch's own polarity, one mask for each head and example.
PER_HEAD = np.stack([np.roll(HALF, shift, axis=1) for shift in range(B * N)]) == 0
X, CONTEXT = draw(B, T, D), draw(B, S, D)
HEADS = np.arange(D).reshape(N, H)

ATTENTION, LINEAR1, LINEAR2 = "layers.1.self_attn", "layers.1.linear1", "layers.1.linear2"
PACKED = f"{ATTENTION}.in_proj_weight"


def blocks_transposed(packed):
    return packed.reshape(3, D, D).swapaxes(1, 2).reshape(packed.shape)


def through_bfloat16(values):
    return values.astype(jnp.bfloat16).astype(values.dtype)


#: In the second layer of an encoder: (name of the fault, twin with it, its cause, its place).
IN_AN_ENCODER: list[tuple[str, Callable[[nn.Module], nnx.Module], str, str]] = [
    ("transposed", weight(f"{ATTENTION}.out_proj.kernel", lambda w: w.T), "transposed weight", f"{ATTENTION}.out_proj"),
    ("transposed blocks", weight(PACKED, blocks_transposed), "transposed weight", ATTENTION),
    ("q-k-v order", weight(PACKED, lambda w: jnp.roll(w, D, axis=0)), "q-k-v order", ATTENTION),
    ("head order", weight(PACKED, lambda w: head_blocks(w, HEADS[::-1].ravel())), "head order", ATTENTION),
    ("interleaved heads", weight(PACKED, lambda w: head_blocks(w, HEADS.T.ravel())), "interleaved heads", ATTENTION),
    ("wrong tensor", copied("linear1", "linear1"), "wrong tensor", LINEAR1),
    ("zeroed", weight("layers.1.norm2.bias", jnp.zeros_like), "zeroed", "layers.1.norm2"),
    ("sign", weight(f"{LINEAR2}.kernel", lambda w: -w), "sign", LINEAR2),
    ("scaled weight", weight(f"{LINEAR2}.kernel", lambda w: w * 1.5), "scaled weight", LINEAR2),
    ("one ulp", weight(f"{LINEAR1}.bias", one_ulp), "rounded weight", LINEAR1),
    ("bfloat16 on the way", weight(f"{LINEAR1}.kernel", through_bfloat16), "precision", LINEAR1),
    ("bias dropped", setting(LINEAR2, bias=None), "bias dropped", LINEAR2),
    ("bias not used", kind(LINEAR2, wrong.BiasForgotten), "bias dropped", LINEAR2),
    ("epsilon", setting("layers.1.norm1", epsilon=1e-6), "epsilon", "layers.1.norm1"),
    ("epsilon in the code", kind("layers.1.norm1", wrong.OtherEpsilon), "epsilon", "layers.1.norm1"),
    ("activation", setting("layers.1", activation=nnx.gelu), "activation", "layers.1"),
    ("activation in the code", kind("layers.1", wrong.TanhInside), "activation", "layers.1"),
    ("norm_first", setting("layers.1", norm_first=True), "norm_first", "layers.1"),
    ("number of heads", setting(ATTENTION, num_heads=3), "number of heads", ATTENTION),
    ("residual missing", kind("layers.1", wrong.NoResidual), "residual missing", "layers.1"),
    ("norm missing", kind("layers.1", wrong.NoSecondNorm), "missing layer", "layers.1"),
    ("dropout left on", kind(LINEAR2, wrong.DroppedOutput), "dropout left on", LINEAR2),
    ("raises", kind(LINEAR1, wrong.Raises), "error", LINEAR1),
]
#: (the wrong class, the mask of the call, its cause)
IN_SELF_ATTENTION: list[tuple[type, Any, str]] = [
    (wrong.InvertedMask, HALF, "mask polarity"),
    (wrong.TransposedMask, HALF, "mask axis"),
    (wrong.IgnoredMask, HALF, "mask ignored"),
    (wrong.ZeroRows, EMPTY, "empty row"),
    (wrong.StrictlyCausal, CAUSAL, "causal alignment"),
    (wrong.AddedCausal, None, "causal mask"),
    (wrong.Unscaled, None, "scale"),
    (wrong.ScaledByWidth, None, "scale"),
    (wrong.Capped, None, "soft cap"),
    (wrong.SoftmaxOverQueries, None, "softmax axis"),
    (wrong.InterleavedSplit, None, "interleaved heads"),
    (wrong.KeysForQueries, None, "q-k-v order"),
    (wrong.DroppedWeights, None, "dropout left on"),
]
#: (name of the fault, torch module, inputs, keyword arguments, twin with the fault, its cause, its place)
ELSEWHERE: list[tuple[str, Callable[[], nn.Module], tuple[Any, ...], dict[str, Any], Any, str, str]] = [
    ("q and k swapped", self_attention, (X,), {}, swapped, "q-k-v order", "Wq"),
    ("tiled groups", grouped, (draw(B, T, 4 * H),), {}, weight("Wk.kernel", tiled), "tiled groups", "Wk"),
    ("stale tie", Tied, (X,), {}, untied, "stale tie", "second"),
    ("epsilon", lambda: nn.LayerNorm(D), (X,), {}, setting("", epsilon=1e-6), "epsilon", ""),
    ("activation of a Sequential", sequential, (X,), {}, feed_forward, "activation", ""),
    (
        "padding polarity",
        torch_attention,
        (X, X, X),
        {"key_padding_mask": PADDING},
        kind("", wrong.InvertedPadding),
        "mask polarity",
        "",
    ),
    (
        "mask of heads",
        torch_attention,
        (X, X, X),
        {"attn_mask": PER_HEAD},
        kind("", wrong.OtherHeadOrderOfMask),
        "mask axis",
        "",
    ),
    (
        "causal bottom-right",
        lambda: torchref.MultiHeadCrossAttention(D, N),
        (X, CONTEXT),
        {"mask": np.tri(T, S, dtype=int)},
        kind("", wrong.BottomRight),
        "causal alignment",
        "",
    ),
    (
        "positions",
        lambda: torchref.SinusoidalPositionalEncoding(D),
        (X,),
        {},
        kind("", wrong.FromOne),
        "position offset",
        "",
    ),
    ("precision only", lambda: nn.Linear(D, 11), (X,), {}, in_bfloat16, "precision", ""),
]


def found(build: Callable[[], nn.Module], plant: Callable[[nn.Module], nnx.Module], *inputs: Any, **named: Any) -> Any:
    """(name of the cause, place)"""
    module = build() if build is grouped else randomise(build(), "faults")
    report = trace(module, plant(module), *inputs, **named)
    assert not report.ok and report.evidence
    return str(report.cause).partition(":")[0], report.first


@pytest.mark.parametrize(
    ("plant", "cause", "first"), [row[1:] for row in IN_AN_ENCODER], ids=[row[0] for row in IN_AN_ENCODER]
)
def test_in_the_second_layer_of_an_encoder(plant, cause: str, first: str) -> None:
    assert found(encoder, plant, X) == (cause, first)


@pytest.mark.parametrize(("wrong_class", "mask", "cause"), IN_SELF_ATTENTION)
def test_in_self_attention(wrong_class: type, mask: Any, cause: str) -> None:
    assert found(self_attention, kind("", wrong_class), X, mask) == (cause, "")


@pytest.mark.parametrize(
    ("build", "inputs", "named", "plant", "cause", "first"),
    [row[1:] for row in ELSEWHERE],
    ids=[row[0] for row in ELSEWHERE],
)
def test_elsewhere(build, inputs, named, plant, cause: str, first: str) -> None:
    assert found(build, plant, *inputs, **named) == (cause, first)


def test_the_earlier_of_two_faults_is_the_first() -> None:
    """One is read off the weights and one is measured, in either order."""

    def zeroed_after_residual(module: nn.Module) -> nnx.Module:
        twin: Any = kind("layers.0", wrong.NoResidual)(module)
        twin.layers[1].linear1.bias[...] *= 0
        return twin

    def zeroed_before_residual(module: nn.Module) -> nnx.Module:
        twin: Any = kind("layers.1", wrong.NoResidual)(module)
        twin.layers[0].linear1.bias[...] *= 0
        return twin

    assert found(encoder, zeroed_after_residual, X) == ("residual missing", "layers.0")
    assert found(encoder, zeroed_before_residual, X) == ("zeroed", "layers.0.linear1")


class Own(nn.Module):
    """A forward of its own, around right parts."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x):
        return self.head(self.mix(self.embed(x) * 3)[:, 0])


class FlaxOwn(nnx.Module):
    def __init__(self, module: nn.Module, before: float = 1, scale: float = 3, token: int = 0, after: float = 1):
        parts = convert.twins(module)
        self.embed, self.mix, self.head = parts["embed"], parts["mix"], parts["head"]
        self.slip = (before, scale, token, after)

    def __call__(self, x):
        before, scale, token, after = self.slip
        return self.head(self.mix(self.embed(x * before) * scale)[:, token]) * after


@pytest.mark.parametrize(
    ("slip", "sentence"),
    [
        ({"before": 2}, "`embed`, its first part, gets something else"),
        ({"scale": 1}, "look between `embed`, which agrees in the whole run, and `mix`, which gets something else"),
        ({"token": -1}, "look between `mix`, which agrees in the whole run, and `head`"),
        ({"after": 0.3}, "all its parts agree in the whole run: look after `head`"),
    ],
)
def test_between_which_parts_of_a_forward_of_ones_own(slip, sentence: str) -> None:
    module = randomise(Own(), "own")
    (evidence,) = [item for item in trace(module, FlaxOwn(module, **slip), X).evidence if item.kind == "local"]
    assert evidence.path == "" and sentence in evidence.sentence


def test_enough_kinds_are_planted() -> None:
    causes = [
        *(row[2] for row in IN_AN_ENCODER),
        *(row[2] for row in IN_SELF_ATTENTION),
        *(row[5] for row in ELSEWHERE),
    ]
    assert len(causes) >= 40 and len(set(causes)) >= 20
