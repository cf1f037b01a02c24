"""cli/variants.py: every name makes the same module on both sides, with inputs that it takes."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
import typer
from flax import nnx

from jaxattn.cli.variants import VARIANTS, variant_named
from jaxattn.convert.naming import rules_of
from jaxattn.convert.torch_bridge import from_torch

SIZES = {
    "embed_dim": 6,
    "num_heads": 2,
    "kv_dim": 5,
    "dim_feedforward": 7,
    "num_layers": 3,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "max_len": 11,
    "query_size": 2,
    "key_size": 3,
    "value_size1": 5,
    "value_size2": 4,
    "output_size": 7,
}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_both_sides_have_the_same_weights_and_take_the_inputs(name, batch):
    variant = VARIANTS[name]
    sizes = {size: SIZES[size] for size in variant.size_names}
    module = nnx.eval_shape(lambda: variant.flax(nnx.Rngs(0), **sizes))
    torch_module = variant.torch(**sizes)
    assert not torch_module.training
    sources = [source for rule in rules_of(module) for source in rule.sources]
    assert sorted(sources) == sorted(torch_module.state_dict())
    twin = from_torch(torch_module)
    assert type(twin) is type(module)
    assert jax.tree.map(np.shape, nnx.to_pure_dict(nnx.state(twin, nnx.Param))) == jax.tree.map(
        np.shape, nnx.to_pure_dict(nnx.state(module, nnx.Param))
    )
    inputs = variant.inputs(np.random.default_rng(0), batch, 4, 5, **sizes)
    assert all(array.dtype == np.float32 for array in inputs)
    assert all(array.shape[:-2] == (() if batch is None else (batch,)) for array in inputs)
    result = jax.eval_shape(lambda module, inputs: module(*inputs), module, inputs)
    output = result if hasattr(result, "shape") else result[0]
    queries = inputs[1] if name == "transformer" else inputs[0]
    assert output.shape[:-1] == queries.shape[:-1]


def test_source_length_is_that_of_the_second_sequence_and_the_seed_decides():
    variant = VARIANTS["multi_head_cross"]
    x, context = variant.inputs(np.random.default_rng(0), 2, 4, 5, **{name: SIZES[name] for name in variant.size_names})
    assert (x.shape, context.shape) == ((2, 4, 6), (2, 5, 5))
    again = variant.inputs(np.random.default_rng(0), 2, 4, 5, embed_dim=6, num_heads=2, kv_dim=5)
    np.testing.assert_array_equal(again[1], context)
    same = VARIANTS["multihead_torch"].inputs(np.random.default_rng(0), 2, 4, 5)
    assert same[0] is same[1] is same[2]


def test_sizes_fill_up_with_defaults_and_refuse_strangers():
    variant = VARIANTS["multi_head_cross"]
    assert variant.sizes(num_heads=2, embed_dim=None, max_len=None) == {"embed_dim": 64, "num_heads": 2, "kv_dim": None}
    with pytest.raises(ValueError, match="`max_len` is no size of this variant, got max_len=3; its sizes: embed_dim"):
        variant.sizes(max_len=3)


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.choices])
def test_choices_reach_every_layer_of_both_sides(name):
    variant = VARIANTS[name]
    sizes = {size: SIZES[size] for size in variant.size_names}
    sizes |= {"norm_first": True, "activation": "gelu", "layer_norm_eps": 1e-3}
    torch_module = variant.torch(**sizes)
    module = nnx.eval_shape(lambda: variant.flax(nnx.Rngs(0), **sizes))
    layers = [part for part in torch_module.modules() if hasattr(part, "norm_first")]
    assert layers and all(part.norm_first and part.activation is torch.nn.functional.gelu for part in layers)
    assert {part.eps for part in torch_module.modules() if isinstance(part, torch.nn.LayerNorm)} == {1e-3}
    twin = from_torch(torch_module)
    assert settings_of(module) == settings_of(twin)


def settings_of(module: nnx.Module) -> list[object]:
    """Of every layer and norm, in order."""
    parts: list[Any] = [part for _, part in nnx.iter_modules(module)]
    layers = [(part.norm_first, part.activation) for part in parts if hasattr(part, "norm_first")]
    return [*layers, *(part.epsilon for part in parts if isinstance(part, nnx.LayerNorm))]


def test_an_unknown_name_is_a_usage_error_with_all_names():
    assert variant_named("my_attn") is VARIANTS["my_attn"]
    with pytest.raises(typer.BadParameter) as caught:
        variant_named("multihead")
    assert all(name in caught.value.message for name in VARIANTS)


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.nn", None)
    with pytest.raises(ImportError, match=r"jaxattn\[torch\]"):
        VARIANTS["encoder_layer"].torch()
