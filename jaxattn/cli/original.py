"""A file on the command line as both sides: the PyTorch original, its Flax twin, and what to call them with."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._checks import ConversionError
from .._tensors import to_torch
from .._text import one_line
from ..convert.apply import state_dict
from ..convert.diagnose import identify
from ..convert.files import Checkpoint, read_checkpoint
from ..convert.flax_layout import flax_state, read_metadata, read_original, source_shapes
from .loading import Loaded, Wanted, load
from .variants import VARIANTS


@dataclass(frozen=True)
class Example:
    """Arguments of both sides.

    Attributes:
        batches: positional ones, a tuple for each call.
        options: keyword ones, the same in every call.
    """

    batches: Sequence[tuple[np.ndarray, ...]]
    options: dict[str, Any]


def example_of(loaded: Loaded, seed: int, count: int, batch: int, length: int, source_length: int) -> Example:
    """Random arrays, or tokens in sentences of ragged length, for `count` calls."""
    rng, settings = np.random.default_rng(seed), loaded.target.settings
    if loaded.target.option == "module":
        variant = VARIANTS[loaded.target.name]
        return Example([variant.inputs(rng, batch, length, source_length, **settings) for _ in range(count)], {})
    config = loaded.module.config  # pyright: ignore[reportAttributeAccessIssue] -- every family's model has one
    lengths = rng.integers(1, length + 1, batch)
    lengths[0] = length
    options = {
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
        "token_type_ids": rng.integers(0, config.type_vocab_size, (batch, length)),
    }
    return Example([(rng.integers(0, config.vocab_size, (batch, length)),) for _ in range(count)], options)


@dataclass(frozen=True)
class Source:
    """What the PyTorch side gets its weights of: a file and how it was loaded, and what there is to say about it."""

    checkpoint: Checkpoint
    loaded: Loaded
    note: str | None = None


def source_of(loaded: Loaded, checkpoint: Checkpoint, against: Path | None, key: str | None, wanted: Wanted) -> Source:
    """The original, given or named by a converted file; else the file itself.

    Args:
        loaded: the file that Flax gets.
        checkpoint: the same.
        against: the original, if it was given.
        key: where the state dict lies in the original; by default as the converted file records it.
        wanted: how `checkpoint` was loaded.

    Raises:
        FileNotFoundError: the original that a converted file names isn't there.
        ConversionError: the original does not hold these weights.
    """
    named = read_original(checkpoint.metadata) if loaded.is_flax else None
    if against is None and named is not None:
        against = Path(os.path.normpath(checkpoint.files[0].resolve().parent / named.path))
        if not against.exists():
            raise FileNotFoundError(
                f"`{checkpoint.path}` was converted from `{against}`, which does not exist: say where it is by "
                f"--against, or leave the conversion out of the comparison by --against `{checkpoint.path}` itself."
            )
    if against is None or (against.exists() and against.samefile(checkpoint.path)):
        unchecked = "both sides have the weights of this one file: what they compute is compared, not its conversion"
        return Source(checkpoint, loaded, unchecked if loaded.is_flax else None)
    if key is None and named is not None and against.is_file() and identify(against).startswith("torch"):
        key = named.key
    original = read_checkpoint(against, key=key)
    if read_metadata(original.metadata):
        wanted = Wanted()
    elif loaded.is_flax:
        settings, target = loaded.target.settings, loaded.target
        wanted = Wanted(prefix=named.prefix if named else "", rename=named.rename if named else {})
        wanted = (
            replace(wanted, module=target.name, sizes=settings)
            if target.option == "module"
            else replace(wanted, family=target.name, config=settings["config"])
        )
    return Source(original, load(original, wanted), f"PyTorch has the weights of `{one_line(str(against))}`")


def torch_original(loaded: Loaded, checkpoint: Checkpoint) -> Any:
    """The PyTorch original with the file's own tensors, in evaluation mode.

    Raises:
        ImportError: torch, or transformers for a family, is not installed.
        ConversionError: weights of several dtypes, with which PyTorch doesn't compute.
    """
    dtypes = {array.dtype.name for array in flax_state(loaded.module).values()}
    if len(dtypes) > 1:
        raise ConversionError(
            f"PyTorch computes with weights of one dtype, got {', '.join(sorted(dtypes))}: cast them."
        )
    target = loaded.target
    original = VARIANTS[target.name].torch(**target.settings) if target.option == "module" else _hugging_face(loaded)
    if loaded.is_flax:
        tensors = state_dict(loaded.module)
    else:
        tensors = {name: checkpoint[loaded.names[name]] for name in source_shapes(loaded.module)}
    result = original.load_state_dict({n: to_torch(array) for n, array in tensors.items()}, strict=False, assign=True)
    buffers = {name for name, _ in original.named_buffers()}
    problems = [f"missing `{name}`" for name in result.missing_keys if name not in buffers]
    problems += [f"unexpected `{name}`" for name in result.unexpected_keys]
    if problems:
        raise ConversionError(f"The weights do not fit PyTorch's {type(original).__name__}:", problems)
    return original.eval()


def _hugging_face(loaded: Loaded) -> Any:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise ImportError('The original of a family is transformers\' model: pip install "jaxattn[test]".') from error
    settings = loaded.target.settings
    options = {name: value for name, value in settings["config"].items() if name != "model_type"}
    config = AutoConfig.for_model(loaded.target.name, **options)
    return AutoModel.from_config(config, attn_implementation="eager", **settings["arguments"])
