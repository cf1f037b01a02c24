"""Sizes and counts that make no sense are refused by the name that the user wrote, where they are given."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flax import nnx

import jaxattn
from jaxattn import layers
from jaxattn._checks import check_divisible, check_sizes
from jaxattn.models import BertConfig
from jaxattn.models.bert_attention import BertSelfAttention
from jaxattn.models.configuration import number_problems

from .errors import refuses

#: No integers: what arithmetic, a file of text or a condition gives.
NO_INTEGERS = (2.0, np.float64(2.0), "2", True)


#: Class → (other arguments, size → the least that is right). torch builds layers of no features and stacks of none.
SIZES: dict[Callable[..., Any], tuple[dict[str, Any], dict[str, int]]] = {
    jaxattn.MultiheadAttention: ({}, {"embed_dim": 1, "num_heads": 1, "kdim": 1, "vdim": 1}),
    jaxattn.MultiHeadSelfAttention: ({}, {"embed_dim": 1, "num_heads": 1}),
    jaxattn.MultiHeadCrossAttention: ({}, {"embed_dim": 1, "num_heads": 1, "kv_dim": 1}),
    jaxattn.ScaledDotProductSelfAttention: ({}, {"embed_dim": 1}),
    jaxattn.MyAttn: ({}, dict.fromkeys(["query_size", "key_size", "value_size1", "value_size2", "output_size"], 1)),
    jaxattn.SinusoidalPositionalEncoding: ({}, {"embed_dim": 1, "max_len": 1}),
    jaxattn.TransformerEncoderLayer: ({}, {"d_model": 1, "nhead": 1, "dim_feedforward": 0}),
    jaxattn.TransformerDecoderLayer: ({}, {"d_model": 1, "nhead": 1, "dim_feedforward": 0}),
    jaxattn.TransformerEncoder: ({"encoder_layer": layers.Dropout(0.1)}, {"num_layers": 0}),
    jaxattn.TransformerDecoder: ({"decoder_layer": layers.Dropout(0.1)}, {"num_layers": 0}),
    jaxattn.Transformer: (
        {},
        {"d_model": 1, "nhead": 1, "num_encoder_layers": 0, "num_decoder_layers": 0, "dim_feedforward": 0},
    ),
    BertSelfAttention: ({}, {"hidden_size": 1, "num_attention_heads": 1}),
    layers.BatchNorm: ({}, {"num_features": 0}),
    layers.ChannelNorm: ({}, {"features": 1}),
    layers.Conv: ({"kernel_size": (2,)}, {"in_channels": 1, "out_channels": 1, "groups": 1}),
    layers.Embedding: ({}, {"num_embeddings": 0, "features": 0}),
    layers.GroupNorm: ({}, {"num_groups": 1, "num_channels": 1}),
    layers.InOutLinear: ({}, {"in_features": 0, "out_features": 0}),
    layers.LayerNorm: ({}, {"features": 1}),
    layers.Linear: ({}, {"in_features": 0, "out_features": 0}),
    layers.OrderedRMSNorm: ({}, {"features": 1}),
    layers.PReLU: ({}, {"num_parameters": 1}),
    layers.RMSNorm: ({}, {"features": 1}),
    layers.linear: ({}, {"in_features": 0, "out_features": 0}),
}
#: Integers that may be negative, and tuples of a convolution.
OF_OTHER_TESTS = {"axis", "padding_idx", "kernel_size", "stride", "padding", "dilation"}
#: Public constructors without sizes.
WITHOUT = {
    layers.Activation,
    layers.Attend,
    layers.Dropout,
    layers.Dropping,
    layers.Flatten,
    layers.FrozenParam,
    layers.RReLU,
    layers.Rearrange,
    layers.Sequential,
}


def parameters(make: Callable[..., Any]) -> dict[str, str]:
    """Its arguments and their annotations; those that Linear passes on to nnx.Linear are options."""
    written = make.__init__ if inspect.isclass(make) else make
    return {name: str(parameter.annotation) for name, parameter in inspect.signature(written).parameters.items()}


def build(make: Callable[..., Any], sizes: dict[str, Any]) -> Any:
    given, known = SIZES[make]
    rngs = {"rngs": nnx.Rngs(0)} if {"rngs", "options"} & set(parameters(make)) else {}
    return make(**dict.fromkeys(known, 2) | given | rngs | sizes)


@pytest.mark.parametrize("make", SIZES, ids=lambda make: make.__name__)
def test_sizes_are_refused_by_the_name_that_was_written(make):
    for name, least in SIZES[make][1].items():
        for wrong in NO_INTEGERS:
            with refuses(TypeError, f"`{name}` must be an integer"):
                build(make, {name: wrong})
        for wrong in range(-1, least):
            with refuses(ValueError, f"`{name}` must"):
                build(make, {name: wrong})


def test_every_size_of_every_public_class_is_in_the_table():
    public = [*vars(jaxattn).values(), *vars(layers).values()]
    classes = {value for value in public if inspect.isclass(value) and issubclass(value, nnx.Module | nnx.Variable)}
    assert classes - set(SIZES) == WITHOUT & classes
    for make, (given, sizes) in SIZES.items():
        counts = {name for name, kind in parameters(make).items() if re.search(r"\bint\b", kind)}
        assert counts - OF_OTHER_TESTS <= set(sizes) | set(given), make.__name__


@pytest.mark.parametrize("index", [2, -3, 5])
def test_a_padding_row_that_the_table_lacks_is_refused(index):
    with refuses(ValueError, f"`padding_idx` must be one of the 2 rows, .*got {index}"):
        layers.Embedding(2, 3, padding_idx=index, rngs=nnx.Rngs(0))


def test_a_padding_row_counts_from_the_end_as_in_torch():
    """torch keeps −1 of four rows as 3; a row that is never met would get gradients."""
    table = layers.Embedding(4, 3, padding_idx=-1, rngs=nnx.Rngs(0))
    assert table.padding_idx == 3 and not np.any(table.embedding[...][3])
    gradient = nnx.grad(lambda table: table(np.array([1, 3])).sum())(table)
    assert np.all(gradient.embedding[...][1] == 1) and np.all(gradient.embedding[...][3] == 0)


@pytest.mark.parametrize("wrong", [2.0, "2", True, 0, -1])
@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
def test_bert_refuses_them_too(name, wrong):
    with refuses(ValueError, f"`{name}` must be an integer ≥ 1"):
        BertConfig(**{name: wrong})
    with pytest.raises(ValueError, match=f"`{name}` must be an integer ≥ 1"):
        BertConfig.from_dict({name: wrong})


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_integers_of_numpy_are_integers(kind):
    """Asked of the checks: annotations, which tests execute, know Python's own int alone."""
    check_sizes(least=2, num_layers=kind(2))
    check_divisible(nhead=kind(2), d_model=kind(4))
    with pytest.raises(ValueError, match="`nhead` must divide `d_model`, got nhead=2, d_model=3"):
        check_divisible(nhead=kind(2), d_model=kind(3))
    assert not number_problems({"hidden_size": kind(2)}, sizes=["hidden_size"], rates=(), positive=())
