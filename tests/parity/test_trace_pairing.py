"""Which submodules `trace` puts side by side."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxattn
from jaxattn.parity import trace
from jaxattn.parity.folding import folded_layers, folded_paths
from jaxattn.parity.trace_layer import Layer

from ..cases import small_bert
from ..inputs import generator, randomise
from .wrong_twins import become


def test_parts_with_the_same_weights_under_other_names_are_a_pair():
    """transformers' encoder.layer.0 is encoder.layers.0 here, its intermediate.dense linear1; by name neither pairs."""
    module = randomise(small_bert(), "pairing").eval()
    ids = generator("pairing").integers(0, 31, (3, 5))
    report = trace(module, jaxattn.from_torch(module), ids, attention_mask=np.ones((3, 5), np.int64))
    report.assert_ok()
    pairs = {layer.torch_path: layer.flax_path for layer in report.layers}
    assert pairs["encoder.layer.0"] == "encoder.layers.0"
    assert pairs["encoder.layer.0.intermediate.dense"] == "encoder.layers.0.linear1"
    assert not {"torch: encoder.layer.0", "torch: encoder.layer.0.intermediate.dense"} & set(report.unpaired)
    # Its attention is a pair by what is inside: no output projection on torch's side.
    assert pairs["encoder.layer.0.attention.self"] == "encoder.layers.0.self_attn"
    assert not [path for path in report.unpaired if "attention.self" in path or "dropout" in path]
    shown = {item.path for item in report.maps}
    assert "encoder.layer.0.attention.self" in shown and len(shown) == len({p for p in pairs if p.endswith(".self")})


class Swapped(jaxattn.MultiheadAttention):
    """Takes keys for queries."""

    in_proj_weight: Any
    in_proj_bias: Any

    def __call__(self, *inputs, **named):
        kept = [parameter[...] for parameter in (self.in_proj_weight, self.in_proj_bias)]
        for parameter in (self.in_proj_weight, self.in_proj_bias):
            q, k, v = jnp.split(parameter[...], 3)
            parameter[...] = jnp.concatenate([k, q, v])
        result = super().__call__(*inputs, **named)
        self.in_proj_weight[...], self.in_proj_bias[...] = kept
        return result


def test_q_and_k_swapped_in_bert_are_named_at_its_attention():
    """In the weights, and in the code."""
    module = randomise(small_bert(), "pairing").eval()
    ids = generator("pairing").integers(0, 31, (3, 5))
    twin = jaxattn.from_torch(module)
    attention = twin.encoder.layers[0].self_attn
    become(attention, Swapped)
    report = trace(module, twin, ids, attention_mask=np.ones((3, 5), np.int64))
    assert (report.first, str(report.cause).partition(":")[0]) == ("encoder.layer.0.attention.self", "q-k-v order")
    become(attention, jaxattn.MultiheadAttention)
    for parameter in (attention.in_proj_weight, attention.in_proj_bias):
        q, k, v = jnp.split(parameter[...], 3)
        parameter[...] = jnp.concatenate([k, q, v])
    report = trace(module, twin, ids, attention_mask=np.ones((3, 5), np.int64))
    assert report.first == "encoder.layer.0.attention.self.query" and "q-k-v order" in str(report.cause)


def test_equal_layers_are_one_line_and_what_fails_has_its_own():
    def layer(number: int, error: float, problems: tuple[str, ...] = ()) -> Layer:
        path = f"layers.{number}.norm"
        return Layer(path, path, 0, "LayerNorm", "LayerNorm", (3, 5), error, 1.0, error, 1.0, problems, 15)

    layers = [layer(0, 0.1), layer(1, 0.3), layer(2, 2.0, ("local: 2 > 1",)), layer(3, 0.2)]
    folded = folded_layers(layers)
    assert [(item.torch_path, item.local_error) for item in folded] == [
        ("layers.{0…1, 3}.norm", 0.3),
        ("layers.2.norm", 2.0),
    ]
    assert folded_layers(layers[:1]) == layers[:1]
    assert folded_paths(["torch: a.0.b", "torch: a.1.b", "torch: c"]) == ["torch: a.{0…1}.b", "torch: c"]
