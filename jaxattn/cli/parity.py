"""`jaxattn parity`: the weights of a file in PyTorch and in Flax, and whether the two compute the same."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from .._checks import ConversionError
from ..convert.apply import state_dict
from ..convert.files import Checkpoint, read_checkpoint
from ..convert.flax_layout import flax_state, source_shapes
from ..convert.tensors import to_torch
from .loading import Loaded, Wanted, load, wide_enough
from .options import AsJson, Config, FamilyName, File, Key, Module, Prefix, Rename, output, parse_renames, with_sizes
from .variants import VARIANTS


@with_sizes
def command(
    file: File,
    module: Module = None,
    family: FamilyName = None,
    config: Config = None,
    key: Key = None,
    prefix: Prefix = "",
    rename: Rename = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples in the batch.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens in the (query) sequence.")] = 16,
    source_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in the key and value sequence; by default as many.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    as_json: AsJson = False,
    sizes: Mapping[str, int | None] | None = None,
) -> None:
    """Load a checkpoint into the PyTorch original and into Flax, and compare outputs, attention weights and gradients.

    Computed in float64 and in the weights' own dtype, on random inputs. The exit code is 1 if anything differs by more
    than rounding explains. Takes what `jaxattn convert` wrote, too, and then needs no options.
    """
    wanted = Wanted(module, family, config, sizes or {}, prefix, parse_renames(rename))
    with Console(stderr=True).status("Loading") as status:
        checkpoint = read_checkpoint(file, key=key)
        with wide_enough(checkpoint):
            loaded = load(checkpoint, wanted)
            rng = np.random.default_rng(seed)
            inputs, options = _inputs(loaded, rng, batch, length, source_length or length)
            torch_module = _torch_twin(loaded, checkpoint)
            status.update("Comparing")
            from ..parity import compare

            report = compare(torch_module, loaded.module, *inputs, seed=seed, **options)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        console = output()
        console.print(report, width=max(console.width, 120), crop=False)
    if not report.ok:
        raise typer.Exit(1)


def _inputs(
    loaded: Loaded, rng: np.random.Generator, batch: int, length: int, source_length: int
) -> tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]:
    """Positional and keyword arguments of both sides: random arrays, or tokens in sentences of ragged length."""
    settings = loaded.target.settings
    if loaded.target.option == "module":
        return VARIANTS[loaded.target.name].inputs(rng, batch, length, source_length, **settings), {}
    config = loaded.module.config  # pyright: ignore[reportAttributeAccessIssue] -- every family's model has one
    lengths = rng.integers(1, length + 1, batch)
    lengths[0] = length
    return (rng.integers(0, config.vocab_size, (batch, length)),), {
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
        "token_type_ids": rng.integers(0, config.type_vocab_size, (batch, length)),
    }


def _torch_twin(loaded: Loaded, checkpoint: Checkpoint) -> Any:
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
    twin = VARIANTS[target.name].torch(**target.settings) if target.option == "module" else _hugging_face(loaded)
    if loaded.is_flax:
        tensors = state_dict(loaded.module)
    else:
        tensors = {name: checkpoint[loaded.names[name]] for name in source_shapes(loaded.module)}
    result = twin.load_state_dict({n: to_torch(array) for n, array in tensors.items()}, strict=False, assign=True)
    buffers = {name for name, _ in twin.named_buffers()}
    problems = [f"missing `{name}`" for name in result.missing_keys if name not in buffers]
    problems += [f"unexpected `{name}`" for name in result.unexpected_keys]
    if problems:
        raise ConversionError(f"The weights do not fit PyTorch's {type(twin).__name__}:", problems)
    return twin.eval()


def _hugging_face(loaded: Loaded) -> Any:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise ImportError('The original of a family is transformers\' model: pip install "jaxattn[test]".') from error
    settings = loaded.target.settings
    options = {name: value for name, value in settings["config"].items() if name != "model_type"}
    config = AutoConfig.for_model(loaded.target.name, **options)
    return AutoModel.from_config(config, attn_implementation="eager", **settings["arguments"])
