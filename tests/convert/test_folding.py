"""A refusal of a deep model fits on a screen."""

import pytest
from flax import nnx
from torch import nn

import jaxattn

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
