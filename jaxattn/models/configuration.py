"""config.json: read strictly. Every option is read, known to have no effect, or refused by name."""

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.bounded_json import parse_json

#: Options of transformers' base class that say how a model is stored, labelled, run, generated from or trained, not
#: what it computes.
WITHOUT_EFFECT = frozenset(
    "_commit_hash _name_or_path _num_labels architectures bad_words_ids begin_suppress_tokens bos_token_id "
    "chunk_size_feed_forward cls_token_id decoder_start_token_id diversity_penalty do_sample dtype early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label keys_to_ignore_at_inference label2id language length_penalty "
    "mask_token_id max_length min_length model_max_length name no_repeat_ngram_size num_beam_groups num_beams "
    "num_labels num_return_sequences output_attentions output_hidden_states output_past output_scores prefix "
    "problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate sentence_transformers "
    "sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tie_word_embeddings tokenizer_class "
    "top_k top_p torch_dtype torchscript transformers_version typical_p unk_token_id use_bfloat16 use_cache "
    "_attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_implementation".split()
)

#: Options of the base class that change the computation, with the values under which they do not.
ONLY: dict[str, tuple[Any, ...]] = {
    "auto_map": (None, {}),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
}

#: Bytes of a config.json; parsed, JSON can take thirty times its text. One with 22,000 labels has about one million.
LARGEST = 4_000_000


def read_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The options in `directory`/config.json; the path of the file itself is taken too.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a JSON object.
    """
    path = Path(directory)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"`{path}` does not exist: give a directory in Hugging Face's layout, config.json beside the weights."
        )
    if path.stat().st_size > LARGEST:
        raise ValueError(
            f"`{path}` must be a configuration of at most {LARGEST} bytes, got "
            f"{path.stat().st_size}: it is another file."
        )
    try:
        options = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"`{path}` is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise ValueError(f"`{path}` must hold a JSON object, got {type(options).__name__}.")
    return options


def select_options(
    options: Mapping[str, Any],
    *,
    read: Collection[str],
    only: Mapping[str, tuple[Any, ...]],
    without_effect: Collection[str],
) -> tuple[dict[str, Any], list[str]]:
    """Those of `options` that the family reads; and every option that is unknown or has an unsupported value.

    Args:
        options: the content of config.json.
        read: names that the family's configuration takes.
        only: names with the values that are supported, beside `ONLY`.
        without_effect: names that do not change what the model computes, beside `WITHOUT_EFFECT`.
    """
    only = {**ONLY, **only}
    problems = []
    for name, value in options.items():
        if name in only and value not in only[name]:
            supported = " or ".join(repr(choice) for choice in only[name])
            problems.append(f"`{name}` must be {supported}, got {value!r}: other values are not supported.")
        elif name not in only and name not in read and name not in without_effect and name not in WITHOUT_EFFECT:
            problems.append(
                f"`{name}` is unknown, got {value!r}: take it out if it changes nothing; the options that are read are "
                f"{', '.join(sorted(read))}."
            )
    return {name: value for name, value in options.items() if name in read}, problems


def refuse(family: str, problems: list[str]) -> None:
    """One ValueError that lists all problems, if there are any."""
    if problems:
        raise ValueError("\n  - ".join([f"The configuration does not fit {family}:", *problems]))


def number_problems(
    values: Mapping[str, Any], *, sizes: Collection[str], rates: Collection[str], positive: Collection[str]
) -> list[str]:
    """Sizes are integers ≥ 1, rates lie in [0, 1), positive numbers are > 0; a bool or a string is none of them."""

    def is_number(value: Any, kinds: tuple[type, ...]) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool)

    checks = (
        (sizes, "an integer ≥ 1", lambda value: is_number(value, (int, np.integer)) and value >= 1),
        (rates, "a rate in [0, 1)", lambda value: is_number(value, (int, float)) and 0 <= value < 1),
        (positive, "a number > 0", lambda value: is_number(value, (int, float)) and 0 < value <= sys.float_info.max),
    )
    return [
        f"`{name}` must be {wanted}, got {values[name]!r}."
        for names, wanted, holds in checks
        for name in names
        if not holds(values[name])
    ]
