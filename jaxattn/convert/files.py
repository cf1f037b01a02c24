"""Checkpoints on disk: one file, an index of shards, or a directory that holds either."""

import os
import re
from pathlib import Path, PurePosixPath

from .._checks import ConversionError
from .._text import argument
from .bounded_json import MAX_BYTES, parse_json
from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import TensorEntry, TensorFile
from .diagnose import SUFFIXES, identify, refuse_directory, refuse_keys
from .safetensors_file import open_safetensors
from .saving import save_checkpoint as save_checkpoint
from .torch_file import open_torch

_PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_INDEX = re.compile(r"\.(safetensors|bin)\.index\.json$")
_SHARD = re.compile(r"-\d+-of-\d+\.\w+$")
_NOT_WEIGHTS = re.compile(r"^(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth)$")


def read_checkpoint(path: str | os.PathLike[str], *, key: str | None = None) -> Checkpoint:
    """The tensors of a checkpoint by name, read one by one when asked for.

    Reads `.safetensors`, `*.safetensors.index.json` and `*.bin.index.json` with their shards, a directory that holds
    one of them, and what torch.save wrote (`.pt`, `.pth`, `.bin`, `.ckpt`; without torch: what torch.load reads with
    weights_only=True is read as data, and nothing in it is run). The content decides, not the name.

    Args:
        path: the file, index or directory. In a directory, `model.safetensors` comes first, then its index,
            `pytorch_model.bin`, its index, then the only checkpoint there is.
        key: where the state dict lies in a nested PyTorch checkpoint, dotted ("model_state_dict", "ema.model").
            Without it, the only dict that holds tensors is taken, and `checkpoint.key` names it.

    Raises:
        FileNotFoundError: nothing is at `path`.
        ConversionError: the content cannot be read as weights; the message says what it is and what to do.
    """
    path = Path(path)
    if not _exists(path):
        raise FileNotFoundError(f"`{path}` does not exist: give a checkpoint file, an index or a directory.")
    file = _choose(path) if path.is_dir() else path
    if file.name.startswith("adapter_model."):
        refuse_directory(file.parent)
    kind = identify(file)
    if kind == "json":
        files, content = _open_index(file, key)
    else:
        files, content = (file,), _open_file(file, kind, key)
    refuse_keys(path, {name: entry.dtype for name, entry in content.entries.items()})
    return Checkpoint(path, files, content)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a directory on the way that may not be searched, a name too long
        raise ConversionError(f"`{path}` cannot be read: {error.strerror}.") from error


def _open_file(file: Path, kind: str, key: str | None) -> TensorFile:
    if kind != "safetensors":
        return open_torch(file, kind == "torch-zip", key)
    if key is not None:
        raise ConversionError(
            f"`{file}` is a safetensors file, which has no nested dicts: leave {argument('key', key)} out."
        )
    return open_safetensors(file)


def _choose(directory: Path) -> Path:
    """The one checkpoint of a directory."""
    refuse_directory(directory)
    for name in _PREFERRED:
        if (directory / name).is_file():
            return directory / name
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    indices = [name for name in names if _INDEX.search(name)]
    files = [name for name in names if name.endswith(SUFFIXES) and not _NOT_WEIGHTS.search(name)]
    found = indices + [name for name in files if not (indices and _SHARD.search(name))]
    if len(found) == 1:
        return directory / found[0]
    if not found:
        raise ConversionError(f"`{directory}` holds no checkpoint: expected {', '.join(SUFFIXES)} or an index.")
    if not indices and all(_SHARD.search(name) for name in found):
        raise ConversionError(f"`{directory}` holds shards without their index (*.index.json): download it too.", found)
    raise ConversionError(f"`{directory}` holds several checkpoints, give the path of one:", found)


def _open_index(index: Path, key: str | None) -> tuple[tuple[Path, ...], TensorFile]:
    """The shards that an index names, as one file: the index decides which tensors there are."""
    weight_map = _read_index(index)
    shards = dict.fromkeys(weight_map.values())
    problems = [f"The shard {name!r} is not in `{index.parent}`." for name in shards if not _is_file(index, name)]
    if problems:
        raise ConversionError(f"`{index}` names shards that are missing: the download is incomplete.", problems)
    opened: dict[str, TensorFile] = {}
    for name in shards:
        kind = identify(index.parent / name)
        if kind == "json":
            raise ConversionError(f"`{index}` names {name!r} as a shard, which is JSON, not weights.")
        opened[name] = _open_file(index.parent / name, kind, key)
    entries: dict[str, TensorEntry] = {}
    for tensor, name in weight_map.items():
        if tensor in opened[name].entries:
            entries[tensor] = opened[name].entries[tensor]
        else:
            problems.append(f"`{tensor}` is not in {name!r}.")
    for name, content in opened.items():
        for tensor in content.entries:
            if (listed := weight_map.get(tensor)) != name:
                told = f"lists it in {listed!r}" if listed else "does not list it"
                problems.append(f"`{tensor}` is in {name!r}, and the index {told}.")
    keys = {content.key: name for name, content in opened.items()}
    if len(keys) > 1:
        problems.append("; ".join(f"{name!r} has its tensors under {found!r}" for found, name in keys.items()))
    if problems:
        raise ConversionError(f"`{index}` and its shards do not agree:", problems)
    formats = {content.format for content in opened.values()}
    metadata = {name: text for content in opened.values() for name, text in content.metadata.items()}
    found_key = next(iter(opened.values())).key
    content = TensorFile(formats.pop() if len(formats) == 1 else "mixed", entries, metadata, found_key)
    return tuple(index.parent / name for name in shards), content


def _read_index(index: Path) -> dict[str, str]:
    """`weight_map`: tensor name → shard name, every shard inside the directory of the index."""
    try:
        with open(index, "rb") as file:
            content = parse_json(file.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:
        raise ConversionError(f"`{index}` is not a readable index: {error}.") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise ConversionError(f"`{index}` is JSON, not a checkpoint index: it has no `weight_map`.")
    if not weight_map:
        raise ConversionError(f"`{index}` holds no tensors: its `weight_map` is empty.")
    problems = [
        f"`{tensor}` lies in {shard!r}."
        for tensor, shard in weight_map.items()
        if not isinstance(shard, str) or not _is_inside(shard)
    ]
    if problems:
        raise ConversionError(f"`{index}` names files outside its own directory, which are not read:", problems)
    return weight_map


def _is_inside(shard: str) -> bool:
    """A relative name without `..`. Links are followed: whoever owns the directory made them (hub caches do)."""
    parts = PurePosixPath(shard.replace("\\", "/")).parts
    return bool(parts) and ".." not in parts and not parts[0].startswith("/") and ":" not in parts[0]


def _is_file(index: Path, shard: str) -> bool:
    try:
        return (index.parent / shard).is_file()
    except (OSError, ValueError):  # a name that no file system can hold
        return False
