"""Reading and writing PyTorch files: torch.load(weights_only=True), nothing looser. torch is imported when called."""

import mmap
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._checks import ConversionError
from .._tensors import BITS, is_tensor, tensor_problem, to_numpy
from .checkpoint import TensorEntry, TensorFile
from .diagnose import archive_records, pickled_globals
from .mapped import map_file, mapped_array
from .nested import pick_state_dict

MINIMUM_TORCH = (2, 10)
"""The first release whose weights_only loading has no known hole (CVE-2025-32434, CVE-2026-24747)."""

_PLAIN = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = {name: np.dtype(name) for name in (*_PLAIN, "float16", "float32", "float64")} | {
    name: np.dtype(dtype) for name, (dtype, _) in BITS.items()
}
"""The dtypes that PyTorch files hold and we read and write, by torch's name."""


def open_torch(path: Path, zipped: bool, key: str | None = None) -> TensorFile:
    """The entries of one file that torch.save wrote; every tensor that cannot be read is named in one error.

    Tensors are read from a map of our own where the archive allows it: torch's keeps every page that was ever read.
    """
    torch = import_torch()
    records = archive_records(path) if zipped else None
    if path.suffix == ".safetensors":
        records = None  # torch.load goes by that name, whatever the content, unless it gets an open file
    if not zipped and any("nested" in name for name in pickled_globals(path, zipped)):
        # In the old format torch builds them from memory that it has yet to read.
        raise ConversionError(f"`{path}` holds a nested tensor: pad it, or save its parts by name.")
    key, tensors = pick_state_dict(_load(torch, path, records is not None), key, is_tensor, path)
    problems = [f"`{name}` {text}." for name, value in tensors.items() if (text := _problem(torch, value))]
    entries = {}
    if not problems:
        readers = {name: partial(_read_only, value) for name, value in tensors.items()}
        if records is not None:
            readers |= _map_tensors(path, tensors, records)
        entries = {
            name: TensorEntry(DTYPES[_dtype_name(value)], tuple(value.shape), readers[name])
            for name, value in tensors.items()
        }
        problems = [f"`{name}` {text}." for name, entry in entries.items() if (text := entry.problem())]
    if problems:
        raise ConversionError(f"`{path}` holds tensors that cannot be read:", problems)
    return TensorFile("torch", entries, {}, key)


def write_torch(arrays: Mapping[str, np.ndarray], file: BinaryIO) -> None:
    """torch.save of a plain dict of tensors with the same bits. Arrays are C-contiguous and little-endian."""
    torch = import_torch()
    tensors = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only written out
        for name, array in arrays.items():
            _, carrier = BITS.get(array.dtype.name, (None, array.dtype.name))
            tensors[name] = torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))
    torch.save(tensors, file)


def import_torch() -> Any:
    """The torch module.

    Raises:
        ImportError: torch is missing, or too old to load files safely.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("PyTorch files need torch: pip install 'jaxattn[torch]'.") from error
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < MINIMUM_TORCH:
        raise ImportError(
            f"PyTorch files are read with torch {'.'.join(map(str, MINIMUM_TORCH))} or newer, got {torch.__version__}: "
            "older releases can be made to run code by a file. Upgrade torch, or use safetensors."
        )
    return torch


def _load(torch: Any, path: Path, mapped: bool) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # prototype and deprecation notes about tensors that we refuse anyway
            if mapped:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            with open(path, "rb") as file:
                return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch.load raise nearly any kind of error
        raise ConversionError(_explain(path, error)) from error


def _map_tensors(
    path: Path, tensors: Mapping[str, Any], records: Mapping[int, int]
) -> dict[str, Callable[[], np.ndarray]]:
    """Readers over our own map, at the positions of the storages in torch's, where the file holds a tensor's own bits.

    Raises:
        ConversionError: a storage is not exactly one record: torch would have read bytes of another.
    """
    storages = {name: tensor.untyped_storage() for name, tensor in tensors.items() if tensor.numel()}
    used = {(storage.data_ptr(), storage.nbytes()) for storage in storages.values()}
    base = _base_address(used, records)
    if base is None:
        raise ConversionError(f"`{path}` is damaged, its tensors do not match their records: save it again.")
    mapping = map_file(path)
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for name, tensor in tensors.items():
        if tensor.is_neg():
            continue  # its bits differ from those in the file
        size = tensor.element_size()
        start = tensor.data_ptr() - base if name in storages else 0
        strides = tuple(stride * size for stride in tensor.stride())
        readers[name] = partial(mapped_array, mapping, start, DTYPES[_dtype_name(tensor)], tuple(tensor.shape), strides)
    return readers


def _base_address(used: set[tuple[int, int]], records: Mapping[int, int]) -> int | None:
    """The address at which the file lies when every storage (address, size) is one of its records."""
    if not used:
        return 0
    first, length = min(used)
    for start, size in records.items():
        base = first - start
        if size == length and base % mmap.PAGESIZE == 0:
            if all(records.get(address - base) == bytes_ for address, bytes_ in used):
                return base
    return None


def _read_only(tensor: Any) -> np.ndarray:
    array = to_numpy(tensor).view()
    array.flags.writeable = False
    return array


def _problem(torch: Any, tensor: Any) -> str | None:
    """Why a tensor is not a plain array, as the rest of a sentence that begins with its name."""
    if text := tensor_problem(tensor):
        return text
    if _dtype_name(tensor) not in DTYPES:
        return f"has dtype {tensor.dtype}, which is not supported"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}, not a plain tensor"
    return None


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _explain(path: Path, error: Exception) -> str:
    """One sentence for what torch.load found. Nothing in the file was run."""
    zipped = zipfile.is_zipfile(path)
    named = pickled_globals(path, zipped)
    refused = re.search(r"GLOBAL (\S+) (?:was not|whose)", str(error))
    if refused:
        if any(name.startswith("torch.nn.modules.") for name in named):
            return (
                f"`{path}` is a whole pickled module (`{refused[1]}`), not weights, and nothing in it was run. "
                "Load it where its code lives and save module.state_dict()."
            )
        return (
            f"`{path}` holds Python objects other than tensors (`{refused[1]}`); restoring them could run code, so "
            "nothing was. If you trust the file, load it with torch.load and save its tensors alone, as safetensors."
        )
    if isinstance(error, pickle.UnpicklingError):
        return (
            f"`{path}` is a damaged file, or a pickle that torch.save did not write (it names: "
            f"{', '.join(named[:3]) or 'nothing'}); nothing in it was run. Save a dict of tensors with torch.save."
        )
    return f"`{path}` is a damaged PyTorch file ({str(error).splitlines()[0][:120] if str(error) else error!r})."
