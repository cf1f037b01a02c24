"""Reading and writing PyTorch files. Reading needs no torch and runs nothing; writing is torch.save's."""

import mmap
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .._checks import ConversionError
from .._tensors import BITS, layout_problem
from .checkpoint import TensorEntry, TensorFile
from .diagnose import pickled_globals
from .mapped import map_file, mapped_array
from .nested import pick_state_dict
from .stored import NotWeights, StoredTensor
from .torch_archive import archive_records
from .torch_pickle import Reader

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file in the format before the zip archive."""
_LOOKED_AT = 2**18
"""Bytes of a refused pickle that are searched for the names in it."""

_PLAIN = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = {name: np.dtype(name) for name in (*_PLAIN, "float16", "float32", "float64")} | {
    name: np.dtype(dtype) for name, (dtype, _) in BITS.items()
}
"""The dtypes that PyTorch files hold and we read and write, by torch's name."""


def open_torch(path: Path, zipped: bool, key: str | None = None) -> TensorFile:
    """The entries of one file that torch.save wrote; every tensor that cannot be read is named in one error.

    torch has no part in it: the pickle is read as data, and each storage lies at the place that the file names for its
    key. Tensors are read from a map of our own: torch's keeps every page that was ever read.
    """
    mapping = map_file(path)
    loaded, starts, swapped = _open_archive(path, mapping) if zipped else _open_legacy(path, mapping)
    key, tensors = pick_state_dict(loaded, key, path)
    entries: dict[str, TensorEntry] = {}
    problems = []
    for name, tensor in tensors.items():
        if text := _problem(tensor):
            problems.append(f"`{name}` {text}.")
            continue
        start = starts[tensor.storage.key] + tensor.offset
        entry = TensorEntry(DTYPES[tensor.dtype], tensor.shape, partial(_read, mapping, start, tensor, swapped))
        if text := entry.problem():
            problems.append(f"`{name}` {text}.")
        entries[name] = entry
    if problems:
        raise ConversionError(f"`{path}` holds tensors that cannot be read:", problems)
    return TensorFile("torch", entries, {}, key)


def _open_archive(path: Path, mapping: mmap.mmap) -> tuple[object, dict[str, int], bool]:
    """The value of a zip archive, where each storage starts, and whether its bytes are in the other order."""
    records = archive_records(path, mapping)
    start, size = records["data.pkl"]
    reader = Reader(mapping, start, start + size, fields=5)
    loaded = _load(path, reader)
    first, length = records.get("byteorder", (0, 0))
    order = mapping[first : first + min(length, 8)].decode("latin1") or "little"
    if order not in ("little", "big"):
        raise ConversionError(f"`{path}` is damaged: its record byteorder is neither little nor big.")
    swapped = order != sys.byteorder
    starts = {}
    for storage in reader.storages.values():
        start, size = records.get(f"data/{storage.key}", (-1, 0))
        if start < 0 or size != storage.nbytes or (swapped and storage.untyped):
            raise ConversionError(f"`{path}` is damaged, its tensors do not match their records: save it again.")
        starts[storage.key] = start
    return loaded, starts, swapped


def _open_legacy(path: Path, mapping: mmap.mmap) -> tuple[object, dict[str, int], bool]:
    """The same of a file as torch.save wrote it before 1.6: pickles, then each storage after its length."""
    reader = Reader(mapping, 0, len(mapping), fields=6)
    if _load(path, reader) != _MAGIC or _load(path, reader) != 1001:
        raise ConversionError(f"`{path}` is a pickle that torch.save did not write; nothing in it was run.")
    _load(path, reader)  # what kind of machine wrote it
    loaded, keys = _load(path, reader), _load(path, reader)
    position, starts = reader.position, {}
    for key in keys if isinstance(keys, list) else ():
        storage = reader.storages.get(key) if isinstance(key, str) else None
        count = int.from_bytes(mapping[position : position + 8], "little")
        if storage is None or key in starts or count != storage.count or len(mapping) < position + 8 + storage.nbytes:
            raise ConversionError(
                f"`{path}` is a damaged or truncated PyTorch file: its storages are not those it names."
            )
        starts[key] = position + 8
        position = starts[key] + storage.nbytes
    if lost := [key for key in reader.storages if key not in starts]:
        raise ConversionError(
            f"`{path}` is a damaged PyTorch file: it holds no data for {len(lost)} of the storages that it names "
            f"({lost[0]!r})."
        )
    return loaded, starts, sys.byteorder == "big"


def write_torch(arrays: Mapping[str, np.ndarray], file: BinaryIO) -> None:
    """torch.save of a plain dict of tensors with the same bits. Arrays are C-contiguous and little-endian."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("Writing PyTorch files needs torch: pip install 'jaxattn[torch]'.") from error
    tensors = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only written out
        for name, array in arrays.items():
            _, carrier = BITS.get(array.dtype.name, (None, array.dtype.name))
            tensors[name] = torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))
    torch.save(tensors, file)


def _read(mapping: mmap.mmap, start: int, tensor: StoredTensor, swapped: bool) -> np.ndarray:
    dtype = DTYPES[tensor.dtype]
    if not (swapped or tensor.negative) or 0 in tensor.shape:
        return mapped_array(mapping, start, dtype, tensor.shape, tensor.strides)
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    elements = mapped_array(mapping, start, dtype, (last // dtype.itemsize + 1,))  # each once, however often it is seen
    if swapped:
        elements = elements.view(f"u{dtype.itemsize}").byteswap()
    if tensor.negative:
        elements = np.negative(elements.view(dtype))
    data = elements.view(np.uint8)
    data.flags.writeable = False
    return np.ndarray(tensor.shape, dtype, data, strides=tensor.strides)


def _problem(tensor: StoredTensor) -> str | None:
    """Why a tensor is not a plain array, as the rest of a sentence that begins with its name."""
    if text := layout_problem(tensor):
        return text
    return None if tensor.dtype in DTYPES else f"has dtype torch.{tensor.dtype}, which is not supported"


def _load(path: Path, reader: Reader) -> object:
    start = reader.position
    try:
        return reader.load()
    except NotWeights as error:
        content = reader.data[start : min(start + _LOOKED_AT, reader.end)]
        raise ConversionError(_explain(path, error, pickled_globals(content))) from error


def _explain(path: Path, error: NotWeights, names: list[str]) -> str:
    """One sentence for what a pickle holds instead of weights. Nothing in it was run."""
    refused = error.name or next(iter(names), "nothing")
    if any("nested" in name for name in (*names, refused)):
        return f"`{path}` holds a nested tensor: pad it, or save its parts by name."
    if any(name.startswith("torch.nn.modules.") for name in names):
        return (
            f"`{path}` is a whole pickled module (`{refused}`), not weights, and nothing in it was run. "
            "Load it where its code lives and save module.state_dict()."
        )
    if error.name:
        return (
            f"`{path}` holds Python objects other than tensors (`{refused}`); restoring them could run code, so "
            "nothing was. If you trust the file, load it with torch.load and save its tensors alone, as safetensors."
        )
    return (
        f"`{path}` is a damaged PyTorch file, or a pickle that torch.save did not write: {error} (it names: "
        f"{', '.join(names[:3]) or 'nothing'}); nothing in it was run. Save a dict of tensors with torch.save."
    )
