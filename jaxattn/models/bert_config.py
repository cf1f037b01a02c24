"""BERT's configuration: Hugging Face's config.json."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.activations import ACTIVATIONS
from .configuration import number_problems, read_config, refuse, select_options

_ONLY = {
    "add_cross_attention": (False,),
    "directionality": ("bidi",),
    "is_decoder": (False,),
    "model_type": ("bert",),
    "pooler_type": ("first_token_transform",),
    "position_embedding_type": ("absolute",),
}
#: The head of a classifier, and what Google's first multilingual configurations say about a pooler never built.
_WITHOUT_EFFECT = frozenset(
    "classifier_dropout pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head".split()
)


@dataclass(frozen=True)
class BertConfig:
    """What BERT computes with; the names and defaults are transformers'.

    Args:
        vocab_size: number of tokens.
        hidden_size: D, in features.
        num_hidden_layers: number of encoder layers.
        num_attention_heads: N; must divide hidden_size.
        intermediate_size: width of the feed-forward layers, in features.
        hidden_act: "gelu" (exact), "gelu_new", "relu", "silu" or another name of `core.activations`.
        hidden_dropout_prob: rate on the embeddings and on the output of each sublayer, in [0, 1).
        attention_probs_dropout_prob: rate on the attention weights, in [0, 1).
        max_position_embeddings: the longest sequence, in tokens.
        type_vocab_size: number of token types.
        initializer_range: standard deviation of the initial weights.
        layer_norm_eps: added to the variance.
        pad_token_id: the token whose embedding gets no gradient; None is no token.

    Raises:
        ValueError: lists every value that is out of range.

    Reference: https://huggingface.co/docs/transformers/model_doc/bert
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0

    def __post_init__(self):
        refuse("BERT", _problems(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "BertConfig":
        """From the content of a config.json.

        Raises:
            ValueError: lists every option that is unknown or has a value that is not supported.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        arguments, problems = select_options(options, read=defaults, only=_ONLY, without_effect=_WITHOUT_EFFECT)
        refuse("BERT", problems + _problems({**defaults, **arguments}))
        return cls(**arguments)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> "BertConfig":
        """From a config.json, or the directory that holds it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no JSON object, an unknown option, or a value that is not supported.
        """
        return cls.from_dict(read_config(path))


def _problems(values: Mapping[str, Any]) -> list[str]:
    """What is out of range."""
    problems = number_problems(
        values,
        sizes=[name for name in values if name.endswith(("_size", "_layers", "_heads", "_embeddings"))],
        rates=("hidden_dropout_prob", "attention_probs_dropout_prob"),
        positive=("initializer_range", "layer_norm_eps"),
    )
    activation, pad = values["hidden_act"], values["pad_token_id"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        problems.append(f"`hidden_act` must be one of {', '.join(ACTIVATIONS)}, got {activation!r}.")
    if problems:
        return problems
    width, heads = values["hidden_size"], values["num_attention_heads"]
    if width % heads:
        problems.append(
            f"`num_attention_heads` must divide `hidden_size`, got num_attention_heads={heads}, hidden_size={width}."
        )
    token = isinstance(pad, int | np.integer) and not isinstance(pad, bool) and 0 <= pad < values["vocab_size"]
    if pad is not None and not token:
        problems.append(f"`pad_token_id` must be None or a token in [0, vocab_size), got {pad!r}.")
    return problems
