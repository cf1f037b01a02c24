"""`jaxattn convert`: a PyTorch checkpoint into Flax's layout, and such a file back, proven by reading it again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .._checks import ConversionError
from .._writing import check_destination, whole_file
from ..convert.apply import state_dict
from ..convert.files import Checkpoint, read_checkpoint, save_checkpoint
from ..convert.flax_layout import KEPT, Original, differences, flax_state, read_original, same_bits, write_metadata
from .loading import Loaded, Wanted, load, wide_enough
from .options import (
    Config,
    FamilyName,
    File,
    Force,
    Key,
    Module,
    Prefix,
    Rename,
    bytes_text,
    parse_renames,
    with_sizes,
)
from .terminal import output, progress, say


@with_sizes
def command(
    file: File,
    to: Annotated[Path, typer.Option(help="The file to write; .safetensors, and back also .pt, .pth, .bin, .ckpt.")],
    module: Module = None,
    family: FamilyName = None,
    config: Config = None,
    key: Key = None,
    prefix: Prefix = "",
    rename: Rename = None,
    force: Force = False,
    sizes: Mapping[str, Any] | None = None,
) -> None:
    """Turn a PyTorch checkpoint into Flax's layout, checked against the module; or such a file back into PyTorch's.

    Flax's layout is a safetensors file with each parameter under its path, kernels (in, out). It says what it holds, so
    the way back needs no options and gives the original's names and bits. Sizes that the shapes tell can be left out.
    """
    check_destination(to, force=force)
    wanted = Wanted(module, family, config, sizes or {}, prefix, parse_renames(rename))
    with progress("Reading") as show:
        checkpoint = read_checkpoint(file, key=key)
        with wide_enough(checkpoint):
            loaded = load(checkpoint, wanted)
            show("Writing and reading back")
            write_converted(loaded, checkpoint, to, wanted, force)
    _report(loaded, checkpoint, to)


def write_converted(loaded: Loaded, source: Checkpoint, path: Path, wanted: Wanted, force: bool = False) -> None:
    """Write a loaded file in the other layout; it takes its place only after what was written has been read back.

    Raises:
        typer.BadParameter: Flax's layout into anything but safetensors, which alone can say what it holds.
        FileExistsError: `path` exists and `force` is off.
        ConversionError: what was written is not what should have been.
    """
    if loaded.is_flax:
        tensors, metadata = _torch_layout(loaded, source), None
    else:
        tensors, metadata = _flax_layout(loaded), _about(loaded, source, path, wanted)
    if metadata is not None and path.suffix not in ("", ".safetensors"):
        raise typer.BadParameter(f"Flax's layout is written as .safetensors, got {path.name!r}.")
    with whole_file(path, force=force) as staged:
        save_checkpoint(tensors, staged, metadata=metadata)
        verify(loaded, source, read_checkpoint(staged), set(tensors))


def verify(loaded: Loaded, source: Checkpoint, written: Checkpoint, names: set[str]) -> None:
    """Both files hold the same tensors, each in its layout, and nothing else was written.

    Raises:
        ConversionError: lists the tensors that differ.
    """
    flax, torch, there = (source, written, "") if loaded.is_flax else (written, source, KEPT)
    wrong = sorted(names ^ set(written))
    if not wrong:
        wrong += differences(loaded.module, flax, torch, loaded.names)
        wrong += [name for name, array in loaded.kept.items() if not same_bits(array, written[there + name])]
    if wrong:
        raise ConversionError(f"`{written.path.name}` is not what was written; it was not kept. These differ:", wrong)


def _flax_layout(loaded: Loaded) -> dict[str, np.ndarray]:
    return {**flax_state(loaded.module), **{KEPT + name: array for name, array in loaded.kept.items()}}


def _about(loaded: Loaded, source: Checkpoint, path: Path, wanted: Wanted) -> dict[str, str]:
    """The metadata of a file in Flax's layout at `path`."""
    target, taken = loaded.target, {*loaded.names.values(), *loaded.kept}
    there = os.path.relpath(source.path.resolve(), path.resolve().parent)
    order = [name for name in source if name in taken]
    original = Original(there, source.key, wanted.prefix, wanted.rename, order)
    return write_metadata(target.option, target.name, target.settings, loaded.names, original)


def _torch_layout(loaded: Loaded, source: Checkpoint) -> dict[str, np.ndarray]:
    """PyTorch's tensors, in the order that they had in the original."""
    weights = {loaded.names[name]: array for name, array in state_dict(loaded.module).items()}
    tensors = {**weights, **loaded.kept}
    original = read_original(source.metadata)
    before = [name for name in original.order if name in tensors] if original else []
    return {name: tensors[name] for name in dict.fromkeys((*before, *tensors))}


def _report(loaded: Loaded, source: Checkpoint, path: Path) -> None:
    console = output()
    layout = "PyTorch's" if loaded.is_flax else "Flax's"
    count = len({*loaded.names.values(), *loaded.kept})
    lines = [f"{loaded.target}: {count} tensors of `{source.path}`"]
    if loaded.report:
        lines += [f"  {line}" for line in str(loaded.report).splitlines()[1:]]
    lines += [f"  {line}" for line in loaded.untold_lines]
    lines.append(f"Wrote `{path}` in {layout} layout, {bytes_text(path.stat().st_size)}; read back, equal bit for bit.")
    for line in lines:
        say(console, line)
