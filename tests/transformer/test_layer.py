"""What the layers and stacks of encoders and decoders share: children of the live layer, dropout by given masks."""

import inspect
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

import jaxattn
from torchref.core.plain_path import plain_path

from ..errors import refuses
from ..inputs import B, H, S, T, generator, randomise
from ..keeping import drawn_masks, keeping
from ..tolerances import close

N, E, FF = 2, 2 * H, 13
RNG = generator("layer")
X = RNG.normal(size=(B, T, E)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, E)).astype(np.float32)
PAIRS = [
    (jaxattn.TransformerEncoderLayer, nn.TransformerEncoderLayer),
    (jaxattn.TransformerEncoder, nn.TransformerEncoder),
    (jaxattn.TransformerDecoderLayer, nn.TransformerDecoderLayer),
    (jaxattn.TransformerDecoder, nn.TransformerDecoder),
    (jaxattn.Transformer, nn.Transformer),
]


def encoder_layer(**options) -> nn.TransformerEncoderLayer:
    options = {"nhead": N, "batch_first": True, **options}
    return randomise(nn.TransformerEncoderLayer(E, dim_feedforward=FF, **options), "layer")


def outputs(oracle: nn.Module, *inputs, **options) -> tuple[np.ndarray, Any]:
    """(torch's, ours), ours under jit."""
    with torch.no_grad(), plain_path():
        expected = oracle(*map(torch.from_numpy, inputs), **options).numpy()
    return expected, jax.jit(lambda m, *arrays: m(*arrays, **options))(jaxattn.from_torch(oracle), *inputs)


def agree(oracle: nn.Module, *inputs, **options) -> bool:
    return close(*reversed(outputs(oracle.eval(), *inputs, **options)))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=[theirs.__name__ for _, theirs in PAIRS])
def test_arguments_and_defaults_are_torchs(ours, theirs):
    """The activation's default is a function there and its name here."""

    def parameters(function: Any) -> dict[str, Any]:
        found = inspect.signature(function).parameters.values()
        wanted = [p for p in found if p.kind != p.KEYWORD_ONLY and p.name not in ("self", "device", "dtype")]
        return {p.name: getattr(p.default, "__name__", p.default) for p in wanted}

    assert parameters(ours.__init__) == parameters(theirs.__init__)
    assert parameters(ours.__call__) == parameters(theirs.forward)


SHAPES = {
    "self_attn": (B, N, T, T),
    "multihead_attn": (B, N, T, S),
    "dropout": (T, B, FF),
    **{f"dropout{place}": (T, B, E) for place in (1, 2, 3)},
}


def test_an_encoder_in_training_with_given_masks():
    """Sequence first, layers whose rates all differ, and a norm with a dropout of its own."""
    norm = nn.Sequential(nn.LayerNorm(E), nn.Dropout(0.5))
    oracle = nn.TransformerEncoder(encoder_layer(batch_first=False), 2, norm, enable_nested_tensor=False)
    for place, part in enumerate(part for part in oracle.modules() if isinstance(part, nn.Dropout)):
        part.p = 0.1 * (place % 7 + 1)
    last: Any = oracle.layers[1]
    last.self_attn.dropout = 0.6
    sites = ["self_attn", "dropout", "dropout1", "dropout2"]
    shapes = {f"layers.{place}.{site}": SHAPES[site] for place in range(2) for site in sites}
    keep = drawn_masks(RNG, {**shapes, "norm.1": (T, B, E)})
    x, causal = np.swapaxes(X, 0, 1).copy(), nn.Transformer.generate_square_subsequent_mask(T)
    with keeping(oracle, keep), torch.no_grad():
        expected = oracle(torch.from_numpy(x), mask=causal).numpy()
    module = jaxattn.from_torch(oracle)
    got = jax.jit(lambda m, x, keep: m(x, causal, deterministic=False, dropout_masks=keep))(module, x, keep)
    assert close(got, expected)
    assert not close(module(x, causal), expected)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_in_training_with_given_masks(norm_first):
    """And with a rate of 0 at one place, which drops nothing whatever its mask says."""
    oracle = randomise(nn.TransformerDecoderLayer(E, N, FF, 0.3, norm_first=norm_first), "layer")
    oracle.multihead_attn.dropout, oracle.dropout3.p = 0.4, 0.2
    keep = drawn_masks(RNG, SHAPES)
    inputs = [np.swapaxes(a, 0, 1).copy() for a in (X, MEMORY)]
    with keeping(oracle, keep), torch.no_grad():
        expected = oracle(*map(torch.from_numpy, inputs)).numpy()
    module = jaxattn.from_torch(oracle)
    got = jax.jit(lambda m, keep: m(*inputs, deterministic=False, dropout_masks=keep))(module, keep)
    assert close(got, expected)


def test_masks_for_no_part_are_refused_and_missing_ones_need_randomness():
    module = jaxattn.from_torch(encoder_layer(dropout=0.5))
    keep = drawn_masks(RNG, {"self_attn": (B, N, T, T)})
    with refuses(ValueError, "`dropout_masks` must be for self_attn, .*, got drop, self_attention.x"):
        module(X, dropout_masks={**keep, "drop": X, "self_attention.x": X})
    with refuses(ValueError, r"needs `rngs=nnx.Rngs\(dropout=seed\)`"):
        module(X, deterministic=False, dropout_masks=keep)
    stack = jaxattn.TransformerEncoder([module], 1)
    with refuses(ValueError, r"must be for layers.0, norm .*, got self_attn"):
        stack(X, dropout_masks=keep)


def swapped(name: str, part: nn.Module) -> nn.TransformerEncoderLayer:
    layer = encoder_layer()
    setattr(layer, name, part)
    return randomise(layer, "layer")


SWAPPED = {
    "another eps": swapped("norm2", nn.LayerNorm(E, eps=0.25)),
    "a norm without bias": swapped("norm1", nn.LayerNorm(E, bias=False)),
    "RMSNorm": swapped("norm1", nn.RMSNorm(E, eps=1e-3)),
    "no norm": swapped("norm2", nn.Identity()),
    "a linear layer without bias": swapped("linear1", nn.Linear(E, FF, bias=False)),
    "a sequence of layers": swapped("linear2", nn.Sequential(nn.Linear(FF, 3), nn.Tanh(), nn.Linear(3, E))),
    "attention with appended rows": swapped(
        "self_attn", nn.MultiheadAttention(E, N, add_bias_kv=True, batch_first=True)
    ),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_children_are_read_off_the_live_layer(name):
    assert agree(SWAPPED[name], X)


@pytest.mark.parametrize(
    "activation",
    [F.mish, F.leaky_relu, torch.sigmoid, partial(F.gelu, approximate="tanh"), partial(F.elu, alpha=0.5), nn.PReLU()],
    ids=["mish", "leaky_relu", "sigmoid", "gelu tanh", "elu", "PReLU"],
)
def test_activations_that_are_functions_or_own_parameters(activation):
    assert agree(encoder_layer(activation=activation), X)


def test_an_activation_with_parameters_is_each_layers_own():
    oracle = nn.TransformerEncoder(encoder_layer(activation=nn.PReLU()), 2, enable_nested_tensor=False)
    state = jaxattn.state_dict(jaxattn.from_torch(oracle))
    assert set(state) == set(oracle.state_dict()) and "layers.1.activation.weight" in state
    stack: Any = jaxattn.TransformerEncoder(jaxattn.from_torch(encoder_layer(activation=nn.PReLU())), 2)
    assert stack.layers[0].activation is not stack.layers[1].activation


@pytest.mark.parametrize(
    "activation", [partial(F.gelu, approximate="other"), partial(F.relu, inplace=True), lambda x: x]
)
def test_a_function_without_a_twin_is_refused(activation):
    with refuses(NotImplementedError, "has no Flax twin; known are modules"):
        jaxattn.from_torch(encoder_layer(activation=activation))


def test_layers_of_one_stack_may_differ():
    layers = [encoder_layer(norm_first=True), encoder_layer(activation="gelu", bias=False), encoder_layer(nhead=1)]
    oracle = nn.TransformerEncoder(layers[0], 3, enable_nested_tensor=False)
    oracle.layers = nn.ModuleList(layers)
    assert agree(oracle, X)


def test_a_layer_that_is_there_twice_is_kept_once():
    layer = jaxattn.TransformerEncoderLayer(E, N, FF, batch_first=True, rngs=nnx.Rngs(0))
    stack: Any = jaxattn.TransformerEncoder([layer, layer], 2)
    assert len(stack.layers) == 1 and close(stack(X), layer(layer(X)))
    assert stack.torch_names() == {"layers.0": ("layers.0", "layers.1")}


def test_precision_and_dtypes_reach_every_part():
    options: dict[str, Any] = {"dtype": "bfloat16", "param_dtype": "float16", "precision": "highest"}
    module = nnx.eval_shape(
        lambda: jaxattn.TransformerDecoderLayer(E, N, FF, batch_first=True, **options, rngs=nnx.Rngs(0))
    )
    assert {str(p.dtype) for p in jax.tree.leaves(nnx.state(module, nnx.Param))} == {"float16"}
    jaxpr = str(jax.make_jaxpr(lambda m, x, y: m(x, y))(module, X, MEMORY))
    products = jaxpr.count("dot_general[")
    assert products == jaxpr.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") and products >= 12
    assert jax.eval_shape(lambda m, x, y: m(x, y), module, X, MEMORY).dtype == "bfloat16"
