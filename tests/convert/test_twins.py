"""A model with a forward of its own, ported by hand from the twins of its parts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import ConversionError
from jaxattn.convert import twins
from jaxattn.layers import FrozenParam

from ..inputs import randomise

D, N, V, T = 6, 2, 11, 5


class Decoder(nn.Module):
    """A language model with a table of positions, a frozen scale and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(D, V)
        self.embed = nn.Embedding(V, D)
        self.positions = nn.Parameter(torch.randn(T, D))
        self.scale = nn.Parameter(torch.randn(D), requires_grad=False)
        self.blocks = nn.ModuleList([self.block()])
        self.register_buffer("causal", torch.ones(T, T).triu(1).bool())
        self.unused = nn.InstanceNorm1d(D, affine=True, track_running_stats=True)
        self.lm_head.weight = self.embed.weight

    @staticmethod
    def block() -> nn.ModuleDict:
        attend = nn.MultiheadAttention(D, N, batch_first=True)
        return nn.ModuleDict({"attend": attend, "mix": nn.Sequential(nn.Linear(D, D), nn.GELU())})

    def forward(self, ids):
        x = self.embed(ids) * self.scale + self.positions
        block: Any
        for block in self.blocks:
            x = x + block["attend"](x, x, x, attn_mask=self.causal, need_weights=False)[0]
            x = x + block["mix"](x)
        return self.lm_head(x)


class Block(nnx.Module):
    def __init__(self, parts, path):
        self.attend, self.mix = parts[f"{path}.attend"], parts[f"{path}.mix"]


class Head(nnx.Module):
    def __init__(self, bias):
        self.bias = bias


class FlaxDecoder(nnx.Module):
    def __init__(self, parts):
        self.embed, self.positions, self.scale = parts["embed"], parts["positions"], parts["scale"]
        self.blocks = nnx.List([Block(parts, "blocks.0")])
        self.lm_head = Head(parts["lm_head.bias"])

    def __call__(self, ids):
        x = self.embed(ids) * self.scale[...] + self.positions[...]
        causal = ~np.tri(T, dtype=bool)
        for block in self.blocks:
            x = x + block.attend(x, x, x, attn_mask=causal, need_weights=False).output
            x = x + block.mix(x)
        return self.embed.attend(x) + self.lm_head.bias[...]

    def torch_ties(self):
        return {"lm_head.weight": "embed.weight"}


@pytest.fixture
def model() -> nn.Module:
    model = randomise(Decoder(), "decoder")
    del model.unused
    return model


def test_a_port_by_hand_is_compared_loaded_and_saved_like_any_other(model):
    ported = FlaxDecoder(twins(model))
    jaxattn.parity.compare(model, ported, np.arange(3 * T).reshape(3, T) % V).assert_ok()
    weights = jaxattn.state_dict(ported)
    theirs = {name: value.numpy() for name, value in model.state_dict().items() if name != "causal"}
    assert weights.keys() == theirs.keys()
    assert all(np.array_equal(weights[name], value) for name, value in theirs.items())
    other = randomise(Decoder(), "other")
    del other.unused
    report = jaxattn.to_torch(ported, other)
    assert report.missing == ["causal"] and other.lm_head.weight is other.embed.weight
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    jaxattn.load_state_dict(ported, {name: value + 1 for name, value in theirs.items()})
    assert np.array_equal(jaxattn.state_dict(ported)["lm_head.weight"], theirs["embed.weight"] + 1)


def test_everything_is_given_or_accounted_for():
    parts = twins(Decoder())
    modules = ["embed", "blocks.0.attend", "blocks.0.mix"]
    assert [path for path, part in parts.items() if isinstance(part, nnx.Module)] == modules
    own = ["positions", "scale", "unused.weight", "unused.bias", "lm_head.bias"]
    assert sorted(path for path, part in parts.items() if isinstance(part, nnx.Variable)) == sorted(own)
    assert isinstance(parts["scale"], FrozenParam) and parts.report.frozen == ["scale"]
    buffers = ["causal", "unused.num_batches_tracked", "unused.running_mean", "unused.running_var"]
    assert sorted(parts.report.left) == sorted([*buffers, "unused", "lm_head"])
    assert parts.report.twins["blocks.0.mix.1"] == "blocks.0.mix.layers.1"
    assert "left:\n  - `causal` is a buffer" in str(parts.report)


def test_missing_paths_explain_themselves():
    parts = twins(Decoder())
    for path, sentence in (
        ("lm_head", r"shares `lm_head.weight` with `embed.weight`: call twins\['embed'\].attend\(x\)"),
        ("unused", r"has no twin \(torch.nn.modules.instancenorm.InstanceNorm1d\)"),
        ("causal", "is a buffer: make a constant of it"),
        ("blocks.0.mix.0", r"is a part of twins\['blocks.0.mix'\]"),
        ("blocks.0.atend", r"did you mean \['blocks.0.attend'\]"),
    ):
        with pytest.raises(KeyError, match=sentence):
            parts[path]


def test_a_module_under_two_paths_is_given_once():
    layer = nn.Linear(D, D)
    model = nn.ModuleDict({"a": layer, "b": nn.ModuleList([layer])})
    parts = twins(model)
    assert list(parts) == ["a"] and parts.report.left == {"b.0": "is the same module as `a`: call that one."}


def test_parts_that_cannot_be_read_are_left_with_their_reason():
    model = nn.ModuleDict(
        {"a": nn.Linear(D, D), "b": nn.Linear(D, D), "c": nn.utils.parametrizations.weight_norm(nn.Linear(D, D))}
    )
    model["b"].register_forward_hook(lambda *args: None)
    parts = twins(model)
    assert "has a forward hook" in parts.report.left["b"] and "pass merge=True" in parts.report.left["c"]
    assert "b.weight" in parts and list(twins(model, merge=True).report.merged) == ["c.weight"]
    with pytest.raises(ConversionError, match="No part of the model has a Flax twin"):
        twins(nn.MaxPool1d(2))


def test_a_convertible_model_is_one_twin_and_half_precision_stays():
    parts = twins(nn.Linear(D, V).to(torch.bfloat16))
    assert list(parts) == [""] and parts[""].kernel.dtype == jnp.bfloat16


def test_double_parts_need_64_bit_types():
    with pytest.raises(ConversionError, match="64-bit types are off"):
        twins(nn.ModuleList([nn.Linear(D, V).double()]))
