"""A model of blocks of its own, ported by hand as the messages say, and the mistakes they are about."""

from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import ConversionError
from jaxattn.convert import twins
from jaxattn.layers import Dropping
from jaxattn.parity import DropoutPlan
from jaxattn.parity.weights import compare_weights

from ..inputs import randomise

D, N, V, T = 6, 2, 11, 5
IDS = np.arange(3 * T).reshape(3, T) % V


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(D), nn.Dropout(0.3)
        self.attend = nn.MultiheadAttention(D, N, dropout=0.2, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.drop(self.attend(y, y, y)[0])


class Model(nn.Module):
    """Its head has the weight of the embedding and a bias of its own."""

    def __init__(self, blocks=2):
        super().__init__()
        self.emb, self.out = nn.Embedding(V, D), nn.Linear(D, V)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.out.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class FlaxBlock(nnx.Module):
    def __init__(self, block):
        parts = twins(block)
        self.norm, self.attend, self.drop = parts["norm"], parts["attend"], parts["drop"]

    def __call__(self, x, *, deterministic=True, rngs=None, dropout_masks=None):
        dropping = Dropping(deterministic, rngs, dropout_masks)
        y = self.norm(x)
        y = self.attend(y, y, y, **dropping.options("attend", self.attend)).output
        return x + self.drop(y, **dropping.options("drop", self.drop))


class FlaxModel(nnx.Module):
    def __init__(self, model):
        parts = twins(model)
        self.emb = parts["emb"]
        self.blocks = nnx.List([FlaxBlock(block) for block in model.blocks])
        setattr(self, "out.bias", parts["out.bias"])

    def __call__(self, ids, *, deterministic=True, rngs=None, dropout_masks=None):
        dropping = Dropping(deterministic, rngs, dropout_masks)
        x = self.emb(ids)
        for index, block in enumerate(self.blocks):
            x = block(x, **dropping.options(f"blocks.{index}", block))
        return self.emb.attend(x) + getattr(self, "out.bias")[...]

    def torch_ties(self):
        return {"out.weight": "emb.weight"}


class Untied(FlaxModel):
    def torch_ties(self):
        return {}


class Holder(nnx.Module):
    def __init__(self, bias):
        self.bias = bias


@pytest.fixture(scope="module")
def model() -> Any:
    return randomise(Model(), "by hand")


@pytest.mark.filterwarnings("ignore:.*training mode")
def test_a_port_as_the_messages_say_agrees_in_training_mode_and_goes_back():
    model = randomise(Model(1), "by hand")
    ported = FlaxModel(model)
    jaxattn.parity.compare(model, ported, IDS, dropout=DropoutPlan(1)).assert_ok()
    other = Model(1)
    report = jaxattn.to_torch(ported, other)
    assert not report.tied and all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_what_has_no_twin_says_what_to_write(model):
    with pytest.raises(NotImplementedError) as error:
        jaxattn.from_torch(model)
    left = twins(model).report.left
    assert left["blocks.0"].endswith(
        "Block): write a Flax class for `Block` with jaxattn.convert.twins(model.blocks[0]), and hold them in "
        "nnx.List([...])."
    )
    assert left["blocks.1"].endswith("Block), as `blocks.0`.")
    assert "setattr(self, 'out.bias', twins['out.bias']), and read it by getattr(self, 'out.bias')" in left["out"]
    assert "\nNext: write a Flax class for `Model`" in str(error.value) and "known are" not in str(error.value).lower()
    assert str(twins(model).report).splitlines()[-3:] == [f"  - `{path}` {why}" for path, why in left.items()]


def test_two_parameters_of_one_name_are_refused_everywhere(model):
    ported: Any = FlaxModel(model)
    weights = jaxattn.state_dict(ported)
    ported.out = Holder(nnx.Param(np.zeros(V, np.float32)))
    for use in (
        lambda: jaxattn.state_dict(ported),
        lambda: jaxattn.load_state_dict(ported, weights),
        lambda: jaxattn.to_torch(ported, model),
        lambda: jaxattn.parity.compare(model, ported, IDS),
    ):
        with pytest.raises(ConversionError) as error:
            use()
        assert error.value.problems == (
            "Two parameters are `out.bias` to PyTorch: the attributes `out` → `bias` and `out.bias`: keep one.",
        )


def test_a_tie_that_flax_does_not_know_is_named(model):
    ported = Untied(model)
    problems = compare_weights(model, ported).problems
    assert problems == [
        "`out.weight` is in torch only; in PyTorch it is `emb.weight`: define `torch_ties()` returning "
        "{'out.weight': 'emb.weight'}"
    ]
    other = Model()
    report = jaxattn.to_torch(ported, other)
    assert report.tied == {"out.weight": "emb.weight"} and torch.equal(other.out.weight, model.out.weight)
    assert "tied in PyTorch, loaded with the other name: out.weight = emb.weight" in str(report)


def test_a_parameter_beside_its_tie_is_refused(model):
    ported: Any = FlaxModel(model)
    ported.out = nnx.Dict(weight=nnx.Param(np.zeros((V, D), np.float32)))
    with pytest.raises(
        ConversionError, match="`out.weight` is a parameter, and in `torch_ties\\(\\)` it is `emb.weight`"
    ):
        jaxattn.state_dict(ported)
