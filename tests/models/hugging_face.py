"""The oracle of the models: transformers' own, in its eager attention, with everything it computes by our names."""

from functools import cache
from typing import Any

import jax
import numpy as np
import torch
import transformers
from transformers.models.bert.modeling_bert import BertModel

from jaxattn._tensors import to_numpy
from jaxattn.capture import capture
from jaxattn.models import load_model
from jaxattn.parity import criterion

from ..inputs import generator, randomise

SMALL = {
    "vocab_size": 31,
    "hidden_size": 33,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "max_position_embeddings": 17,
    "type_vocab_size": 3,
    "pad_token_id": 5,
}


def hugging_face(name: str, *, pooler: bool = True, **options: Any) -> BertModel:
    """A small BertModel in float64 whose weights are random everywhere."""
    config = transformers.BertConfig(**{**SMALL, **options})
    config._attn_implementation = "eager"
    return randomise(BertModel(config, add_pooling_layer=pooler).double(), name)


def converted(model: BertModel, **options: Any) -> Any:
    """Our twin, by the configuration and the weights that transformers would write."""
    weights = {name: to_numpy(tensor) for name, tensor in model.state_dict().items()}
    return load_model(model.config.to_dict(), weights, precision="highest", **options)[0]


def draw(name: str, batch: int = 3, length: int = 7, options: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Every input of a model: a ragged mask, token types, positions in another order."""
    rng, options = generator(name), {**SMALL, **(options or {})}
    shape = (batch, length)
    lengths = rng.integers(1, length + 1, batch)
    return {
        "input_ids": rng.integers(0, options["vocab_size"], shape),
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
        "token_type_ids": rng.integers(0, options["type_vocab_size"], shape),
        "position_ids": np.stack([rng.permutation(options["max_position_embeddings"])[:length] for _ in range(batch)]),
    }


def theirs(model: torch.nn.Module, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs, hidden states and attention maps."""
    with torch.no_grad():
        result = model(**_tensors(inputs), output_hidden_states=True, output_attentions=True)
    seen = {"last_hidden_state": result.last_hidden_state, "embeddings:output": result.hidden_states[0]}
    if result.pooler_output is not None:
        seen["pooler_output"] = result.pooler_output
    for i, weights in enumerate(result.attentions):
        seen[f"encoder.layers.{i}.self_attn:weights"] = weights
        seen[f"encoder.layers.{i}:output"] = result.hidden_states[i + 1]
    return {name: tensor.double().numpy() for name, tensor in seen.items()}


def _tensors(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


@cache
def _watched():
    return jax.jit(lambda model, inputs: capture(model, **inputs))


@jax.jit
def run(model: Any, inputs: dict[str, np.ndarray]) -> Any:
    """A Flax model's own result; one compilation for each configuration and each shape."""
    return model(**inputs)


def ours(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same of a Flax model."""
    result, seen = _watched()(model, inputs)
    names = [f"encoder.layers.{i}" for i in range(len(model.encoder.layers))]
    wanted = [
        "embeddings:output",
        *(f"{name}:output" for name in names),
        *(f"{name}.self_attn:weights" for name in names),
    ]
    found = {name: seen[name] for name in wanted}
    found |= {name: array for name, array in result._asdict().items() if array is not None}
    return {name: np.asarray(array) for name, array in found.items()}


def assert_same_algorithm(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> None:
    """Both in float64."""
    assert found.keys() == truth.keys()
    for name, array in truth.items():
        assert found[name].dtype == np.float64 and found[name].shape == array.shape, name
        scale, tolerance = criterion.output_scale(array), criterion.OUTPUT_TOLERANCE
        verdict = criterion.algorithm_verdict(found[name], array, scale=scale, tolerance=tolerance)
        assert verdict.problem is None, f"{name}: {verdict.problem}"


def assert_rounding(found: dict[str, Any], reference: dict[str, Any], truth: dict[str, Any], dtype: Any) -> None:
    """Both at `dtype`, truth the float64 run on the same parameters."""
    assert found.keys() == truth.keys()
    for name, array in truth.items():
        assert found[name].dtype == dtype and found[name].shape == array.shape, name
        scale = criterion.output_scale(array)
        verdict, _ = criterion.rounding_verdict(found[name], reference[name], array, scale=scale, dtype=np.dtype(dtype))
        assert verdict.problem is None, f"{name}: {verdict.problem}"
