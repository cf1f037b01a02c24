"""A refusal of a deep model fits on a screen."""

import pickle
from collections import OrderedDict
from typing import Any

import pytest
from flax import nnx
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import jaxattn
from jaxattn.convert.folding import REST

from ..errors import refuses


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.drop, self.scale = nn.AlphaDropout(0.1), nn.Parameter(nn.Linear(4, 1).weight.detach()[0])


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, 4, 2), nn.ModuleList(Block() for _ in range(12))


def test_equal_layers_are_one_line_each():
    with pytest.raises(NotImplementedError) as caught:
        jaxattn.from_torch(Vision().eval())
    text = str(caught.value)
    assert len(text.splitlines()) < 40
    assert "`blocks.0.norm1` (LayerNorm) [12 alike, to `blocks.11.norm1`]" in text
    assert text.count("norm1") == 2 and "`patches` (Conv2d)" in text
    assert "print(jaxattn.convert.twins(model).report)" in text
    assert "blocks.7.drop" in str(jaxattn.convert.twins(Vision().eval()).report)


SHARED = nn.Parameter(nn.Linear(2, 2).weight.detach().clone())
FAULTS: dict[str, Any] = {
    "hook": (lambda part: part.register_forward_hook(lambda *_: None), "has a forward hook"),
    "forward": (lambda part: setattr(part, "forward", part.forward), "has a `forward` of its own"),
    "weight_norm": (weight_norm, "computes `weight` by _WeightNorm"),
    "meta": (lambda part: part.to("meta"), "is a meta tensor"),
    "float64": (lambda part: part.double(), "is float64"),
    "shared": (lambda part: setattr(part, "weight", SHARED), "are one tensor in PyTorch"),
}


@pytest.mark.parametrize("named", [False, True], ids=["numbers", "names"])
@pytest.mark.parametrize("fault", FAULTS)
def test_three_hundred_faults_fit_on_a_screen_and_the_report_has_them_all(fault, named):
    (change, words), size = FAULTS[fault], 40 if fault == "shared" else 300
    kinds = 2 if fault in ("meta", "float64") else 1
    count = kinds * size - (fault == "shared")
    names = [f"part{chr(97 + i // 26)}{chr(97 + i % 26)}" if named else str(i) for i in range(size)]
    model = nn.Sequential(OrderedDict((name, nn.Linear(2, 2)) for name in names))
    for part in model:
        change(part)
    with pytest.raises((NotImplementedError, jaxattn.ConversionError)) as caught:
        jaxattn.from_torch(model)
    text = str(caught.value)
    assert len(text.splitlines()) < 20 and words in text and REST in text
    if named:
        assert f"… and {count - 12} more" in text
    else:
        assert text.count(f"[{count // kinds} alike, to `{size - 1}") == kinds
    report = str(jaxattn.convert.refusal_report(model))
    assert all(f"`{name}" in report for name in names[1:])
    if isinstance(caught.value, jaxattn.ConversionError):
        assert len(caught.value.problems) == count
        assert str(pickle.loads(pickle.dumps(caught.value))) == text


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.AlphaDropout(0.1) for _ in range(300))


def test_a_model_without_any_part_that_has_a_twin():
    with pytest.raises(NotImplementedError) as refusal:
        jaxattn.from_torch(Recurrent())
    with pytest.raises(jaxattn.ConversionError) as error:
        jaxattn.convert.twins(Recurrent())
    assert "`steps.0` has no twin (torch.nn.modules.dropout.AlphaDropout) [300 alike, to `steps.299`]" in str(
        error.value
    )
    for text in map(str, (refusal.value, error.value)):
        assert len(text.splitlines()) < 10 and max(map(len, text.splitlines())) < 200
    report = str(jaxattn.convert.refusal_report(Recurrent()))
    assert all(f"`steps.{place}` has no twin" in report for place in range(300))


def test_a_class_of_nearly_a_known_name_says_so():
    with pytest.raises(NotImplementedError, match="of nearly this name there is torch.nn.modules.dropout.Dropout"):
        jaxattn.from_torch(nn.AlphaDropout())
    with pytest.raises(NotImplementedError, match=r"print\(jaxattn.convert.known_classes\(\)\)"):
        jaxattn.from_torch(Recurrent())
    assert max(map(len, jaxattn.convert.known_classes().splitlines())) <= 100
    assert "MultiheadAttention" in jaxattn.convert.known_classes()


def test_the_report_names_what_the_model_itself_has():
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    assert "  - the module has a forward hook" in str(jaxattn.convert.refusal_report(model))


@pytest.mark.parametrize("count", [2.0, True, "2"])
def test_a_number_of_heads_that_is_no_integer_is_refused_where_it_is_given(count):
    for kind in (jaxattn.MultiheadAttention, jaxattn.MultiHeadSelfAttention, jaxattn.MultiHeadCrossAttention):
        with refuses(TypeError, "`num_heads` must be an integer"):
            kind(4, count, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda rngs, wrong: jaxattn.MyAttn(3, wrong, 5, 6, 7, rngs=rngs), "key_size"),
        (lambda rngs, wrong: jaxattn.ScaledDotProductSelfAttention(wrong, rngs=rngs), "embed_dim"),
    ],
)
def test_a_size_that_is_no_integer_is_refused_where_it_is_given(make, name):
    with refuses(TypeError, f"`{name}` must be an integer"):
        make(nnx.Rngs(0), 4.0)
