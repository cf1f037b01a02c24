"""BertConfig: every option of config.json is read, known to be without effect, or refused by name."""

import dataclasses
import json

import pytest
import transformers

from jaxattn.models import BertConfig
from jaxattn.models.pretrained import FAMILIES

#: Google's first multilingual configuration and one of 2019 as transformers wrote it: what real files carry.
MULTILINGUAL = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 119547,
}
OF_2019 = {
    "architectures": ["BertForMaskedLM"],
    "finetuning_task": None,
    "is_decoder": False,
    "num_labels": 2,
    "output_attentions": False,
    "output_hidden_states": False,
    "pruned_heads": {},
    "torchscript": False,
    "use_bfloat16": False,
    "vocab_size": 30522,
}


@pytest.mark.parametrize("options", [{}, MULTILINGUAL, OF_2019, transformers.BertConfig().to_dict()])
def test_real_configurations(options):
    config = BertConfig.from_dict(options)
    assert all(getattr(config, name) == value for name, value in options.items() if hasattr(config, name))
    assert BertConfig.from_dict(dataclasses.asdict(config)) == config


def test_defaults_are_transformers():
    theirs = transformers.BertConfig()
    for field in dataclasses.fields(BertConfig):
        assert getattr(theirs, field.name) == field.default, field.name


def test_every_option_of_transformers_is_known():
    """A newer transformers that writes another option makes this fail: decide what it means."""
    written = {**transformers.BertConfig().to_dict(), **json.loads(transformers.BertConfig().to_json_string())}
    BertConfig.from_dict(written)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("position_embedding_type", "relative_key_query", "`position_embedding_type` must be 'absolute', got"),
        ("is_decoder", True, "`is_decoder` must be False, got True"),
        ("add_cross_attention", True, "`add_cross_attention` must be False"),
        ("is_encoder_decoder", True, "`is_encoder_decoder` must be False"),
        ("model_type", "roberta", "`model_type` must be 'bert', got 'roberta'"),
        ("pruned_heads", {"0": [1]}, "`pruned_heads` must be None or {}"),
        ("auto_map", {"AutoModel": "modeling.Mine"}, "`auto_map`"),
        ("quantization_config", {"quant_method": "gptq"}, "`quantization_config`"),
        ("rope_theta", 10000.0, "`rope_theta` is unknown, got 10000.0"),
        ("hidden_sizes", 12, "`hidden_sizes` is unknown"),
        ("hidden_act", "mish", "`hidden_act` must be one of relu, gelu, gelu_new"),
        ("hidden_act", None, "`hidden_act`"),
        ("hidden_size", "768", "`hidden_size` must be an integer ≥ 1, got '768'"),
        ("hidden_size", 768.0, "`hidden_size` must be an integer"),
        ("vocab_size", True, "`vocab_size` must be an integer"),
        ("num_hidden_layers", 0, "`num_hidden_layers` must be an integer ≥ 1, got 0"),
        ("max_position_embeddings", None, "`max_position_embeddings` must be an integer"),
        ("num_attention_heads", 7, "`num_attention_heads` must divide `hidden_size`, got num_attention_heads=7"),
        ("hidden_dropout_prob", 1.0, "`hidden_dropout_prob` must be a rate in [0, 1), got 1.0"),
        ("attention_probs_dropout_prob", -0.1, "`attention_probs_dropout_prob` must be a rate"),
        ("layer_norm_eps", 0, "`layer_norm_eps` must be a number > 0, got 0"),
        ("layer_norm_eps", float("nan"), "`layer_norm_eps`"),
        ("initializer_range", "0.02", "`initializer_range`"),
        ("pad_token_id", 30522, "`pad_token_id` must be None or a token in [0, vocab_size), got 30522"),
        ("pad_token_id", -1, "`pad_token_id`"),
    ],
)
def test_refused(name, value, words):
    with pytest.raises(ValueError) as caught:
        BertConfig.from_dict({name: value})
    assert words in str(caught.value)


def test_every_problem_is_listed():
    with pytest.raises(ValueError) as caught:
        BertConfig.from_dict({"is_decoder": True, "alibi": 1, "model_type": "bert"})
    assert "is_decoder" in str(caught.value) and "alibi" in str(caught.value)
    with pytest.raises(ValueError) as caught:
        BertConfig(hidden_size=0, layer_norm_eps=-1.0)
    assert "hidden_size" in str(caught.value) and "layer_norm_eps" in str(caught.value)


def test_from_json(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MULTILINGUAL))
    for path in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert BertConfig.from_json(path).vocab_size == 119547
    with pytest.raises(FileNotFoundError):
        BertConfig.from_json(tmp_path / "other.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="not valid JSON"):
        BertConfig.from_json(tmp_path)


def test_families_name_their_model_type():
    assert all(family.prefix == kind for kind, family in FAMILIES.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        BertConfig().hidden_size = 1  # pyright: ignore[reportAttributeAccessIssue] -- the point of the test
