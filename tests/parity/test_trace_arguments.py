"""What a forward of one's own passes to right parts: masks that differ, inputs that differ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import convert
from jaxattn.parity import trace

from ..inputs import randomise
from .plants import B, D, N, T, draw

VOCABULARY = 11
IDS = np.arange(B * T).reshape(B, T) * 7 % VOCABULARY


class Decoder(nn.Module):
    """As those who write a small GPT do: learned positions, a causal encoder, a tied head with a bias."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, D), nn.Parameter(torch.ones(2 * T, D))
        layer = nn.TransformerEncoderLayer(D, N, 13, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, VOCABULARY)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tok(ids) * D**0.5 + self.pos[:n]
        return self.head(self.ln(self.blocks(x, mask=torch.triu(torch.ones(n, n, dtype=torch.bool), 1))))


class Holder(nnx.Module):
    def __init__(self, bias: Any):
        self.bias = bias


class FlaxDecoder(nnx.Module):
    """Right if nothing is slipped in."""

    def __init__(self, module: nn.Module, **slip: Any):
        parts = convert.twins(module)
        self.tok, self.pos, self.blocks, self.ln = (parts[name] for name in ("tok", "pos", "blocks", "ln"))
        self.head, self.slip = Holder(parts["head.bias"]), slip

    def __call__(self, ids):
        n, slip = ids.shape[1], self.slip
        start = slip.get("start", 0)
        x = self.tok(ids) * slip.get("scale", D**0.5) + self.pos[...][start : start + n]
        mask = slip.get("mask", lambda causal: causal)(jnp.triu(jnp.ones((n, n), bool), 1))
        out = self.tok.attend(self.ln(self.blocks(x, mask=mask))) + self.head.bias[...]
        return slip.get("last", lambda result: result)(out)


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    return randomise(Decoder(), "decoder").eval()


@pytest.mark.parametrize("mask", [lambda m: m, lambda m: jnp.where(m, -jnp.inf, 0.0), lambda m: jnp.where(m, -1e9, 0)])
def test_a_right_port_with_a_holder_of_parameters(decoder, mask) -> None:
    report = trace(decoder, FlaxDecoder(decoder, mask=mask), IDS)
    report.assert_ok()
    assert not report.evidence and all(layer.torch_path != "head" for layer in report.layers)
    assert report.unpaired == ("torch: head (`head` in Flax holds parameters only)",)


@pytest.mark.parametrize(
    ("slip", "first", "cause"),
    [
        ({"mask": lambda m: None}, "blocks", "mask ignored: `blocks` got `mask` (5, 5) in torch and none in Flax"),
        ({"mask": lambda m: ~m}, "blocks", "mask polarity: `blocks` got `mask` (5, 5), which in Flax is the inverse"),
        ({"mask": lambda m: m.T}, "blocks", "mask axis: `blocks` got `mask` (5, 5), which in Flax is torch's with its"),
        (
            {"mask": lambda m: m.astype(float)},
            "blocks",
            "mask dtype: `blocks` got `mask` of booleans in torch and of 0",
        ),
        ({"mask": lambda m: jnp.triu(m, 2)}, "blocks", "mask alignment: `blocks` got `mask` (5, 5), moved by +1"),
        (
            {"mask": lambda m: m.at[2, 3].set(False)},
            "blocks",
            "other mask: `blocks` got `mask` (5, 5), of which 1 of 25",
        ),
        ({"start": 1}, "", "position offset: `src` of `blocks` has the rows of `pos` from 1 on added in Flax"),
        ({"scale": 1.0}, "", "scale: `src` of `blocks` holds what `tok` returns 1.449 times less than torch's"),
        ({"last": jax.nn.log_softmax}, "", "softmax added: Flax's result is the log-softmax"),
        (
            {"last": lambda out: jnp.tanh(out) * 2},
            "",
            "its own forward: all its parts agree in the whole run: look after",
        ),
    ],
)
def test_what_a_forward_does_otherwise(decoder, slip, first: str, cause: str) -> None:
    report = trace(decoder, FlaxDecoder(decoder, **slip), IDS)
    assert report.first == first and str(report.cause).startswith(cause)
    named = f"they part first at {f'`{first}`' if first else '(the whole module)'}; {cause.partition(':')[0]}"
    assert named in str(report) and "``" not in str(report)
    if first:
        assert [(item.kind, item.path) for item in report.evidence] == [("arguments", first), ("output", "")]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(D), nn.MultiheadAttention(D, N, batch_first=True)
        self.ln2, self.mlp = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        h, mask = self.ln1(x), torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        x = x + 0.1 * self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class FlaxBlock(nnx.Module):
    def __init__(self, module: Any, **slip: Any):
        parts = convert.twins(module)
        self.ln1, self.attn, self.ln2, self.mlp = (parts[name] for name in ("ln1", "attn", "ln2", "mlp"))
        self.slip = slip

    def __call__(self, x):
        h, mask = self.ln1(x), self.slip.get("mask", lambda: jnp.triu(jnp.ones((T, T), bool), 1))()
        attended = 0.1 * self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = attended if self.slip.get("residual") is False else x + attended
        return x + self.mlp(self.ln2(x) * self.slip.get("times", lambda: 1.0)())


class FlaxBlocks(nnx.Module):
    def __init__(self, module: Any, **slip: Any):
        self.blocks = nnx.List([FlaxBlock(module.blocks[0]), FlaxBlock(module.blocks[1], **slip)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("slip", "first", "cause"),
    [
        (
            {"mask": lambda: None},
            "blocks.1.attn",
            "mask ignored: `blocks.1.attn` got `attn_mask` (5, 5) in torch and none",
        ),
        (
            {"mask": lambda: jnp.tri(T) > 0},
            "blocks.1.attn",
            "mask polarity: `blocks.1.attn` got `attn_mask` (5, 5), which",
        ),
        (
            {"residual": False},
            "blocks.1",
            "residual missing: `input` of `blocks.1.ln2` is torch's without its input `x`, which torch adds; "
            "look between `blocks.1.attn`, which agrees in the whole run, and `blocks.1.ln2`",
        ),
        (
            {"times": lambda: jnp.arange(D)},
            "blocks.1",
            "another input: look between `blocks.1.ln2`, which agrees in the whole run, and `blocks.1.mlp`, which gets "
            "something else: `input` differs by up to ",
        ),
    ],
)
def test_in_the_second_of_ones_own_blocks(slip, first: str, cause: str) -> None:
    module = randomise(Blocks(), "blocks").eval()
    report = trace(module, FlaxBlocks(module, **slip), draw(B, T, D))
    assert report.first == first and str(report.cause).startswith(cause)


class Scaled(nn.Module):
    """A part that Flax calls otherwise, between two that it calls alike."""

    def __init__(self):
        super().__init__()
        self.embed, self.add, self.head = nn.Linear(D, D), Add(), nn.Linear(D, 2)

    def forward(self, x):
        return self.head(self.add(self.embed(x), by=x))


class Add(nn.Module):
    def forward(self, x, by):
        return x + by


class FlaxAdd(nnx.Module):
    def __call__(self, pair):
        return pair[0] + pair[1]


class FlaxScaled(nnx.Module):
    def __init__(self, module: Any):
        self.embed, self.head, self.add = jaxattn.from_torch(module.embed), jaxattn.from_torch(module.head), FlaxAdd()

    def __call__(self, x):
        return self.head(self.add((self.embed(x * 2), x)))


def test_an_error_that_the_whole_run_never_meets_is_no_cause() -> None:
    module = randomise(Scaled(), "scaled")
    report = trace(module, FlaxScaled(module), draw(B, D))
    cause = str(report.cause)  # 2x and x + x are one number: neither is more likely
    assert report.first == "" and cause.startswith("scale or residual added: `input` of `embed` is 2 times torch's in")
    assert all("raises" not in item.sentence for item in report.evidence)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe, self.out = nn.Embedding(2 * T, D), nn.Linear(D, D)

    def forward(self, x):
        return self.out(x + self.pe(torch.arange(x.shape[-2])))


class FlaxPositions(nnx.Module):
    def __init__(self, module: Any):
        self.pe, self.out = jaxattn.from_torch(module.pe), jaxattn.from_torch(module.out)

    def __call__(self, x):
        return self.out(x + self.pe(jnp.arange(x.shape[-2]) + 1))


def test_positions_from_one() -> None:
    module = randomise(Positions(), "positions")
    report = trace(module, FlaxPositions(module), draw(B, T, D))
    assert str(report.cause).startswith("position offset: `input` of `pe` is torch's +1 in Flax")
