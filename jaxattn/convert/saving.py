"""Writing a checkpoint: checked as a whole, written beside its destination, then renamed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from .._checks import ConversionError
from .._tensors import as_numpy
from .._writing import check_destination, whole_file
from . import safetensors_file, torch_file
from .diagnose import SUFFIXES, TORCH_SUFFIXES


def save_checkpoint(
    state_dict: Mapping[Any, Any],
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write named arrays to `.safetensors`, or to `.pt`, `.pth`, `.bin`, `.ckpt` by torch.save; bit for bit.

    The file appears whole or not at all: it is written into a hidden folder in the same directory, then moved. One that
    it replaces hands its permissions on. Python ends at SIGTERM without tidying up, and at SIGKILL nothing can: the
    next writer in that directory removes what such a one left.

    Args:
        state_dict: str → NumPy, JAX or torch array, any strides; what is no string or array is reported.
        path: where to write; a name without a suffix is written as safetensors.
        force: replace a file that exists.
        metadata: text stored beside the tensors of a safetensors file; the default is {"format": "pt"}, which
            says that names and layouts are PyTorch's and which Hugging Face's loaders ask for.

    Raises:
        FileExistsError: `path` exists and `force` is off, or is a directory, a device or a pipe.
        FileNotFoundError: the directory does not exist.
        ConversionError: names or arrays that the format cannot hold, all of them listed; a disk that is full.
        ValueError: an unknown suffix, or `metadata` for a PyTorch file.
    """
    path = Path(path)
    as_torch = path.suffix in TORCH_SUFFIXES
    if path.suffix not in ("", *SUFFIXES):
        raise ValueError(f"`path` must end in one of {', '.join(SUFFIXES)}, got {path.name!r}.")
    if as_torch and metadata is not None:
        raise ValueError(f"`metadata` is stored in safetensors files only, got path={path.name!r}.")
    check_destination(path, force=force)
    arrays = _prepare(state_dict, torch_file.DTYPES if as_torch else safetensors_file.DTYPES)
    text = _check_metadata(metadata)
    with whole_file(path, force=force) as partial_path, open(partial_path, "xb") as file:
        try:
            if as_torch:
                torch_file.write_torch(arrays, file)
            else:
                _write_safetensors(arrays, partial_path, file, text)
        except (SafetensorError, RuntimeError) as error:  # torch's own words hide what the system said
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise ConversionError(f"`{path.name}` could not be written: {reason}.") from error


def _prepare(state_dict: object, supported: Mapping[str, np.dtype]) -> dict[str, np.ndarray]:
    """C-contiguous little-endian arrays by name; every name and array that cannot be written in one error."""
    if not isinstance(state_dict, Mapping):
        raise ConversionError(f"`state_dict` must map names to arrays, got a {type(state_dict).__name__}.")
    if not state_dict:
        raise ConversionError("`state_dict` is empty: there is nothing to save.")
    arrays, problems = {}, []
    known = set(supported.values())
    for name in state_dict:
        if problem := _name_problem(name):
            problems.append(problem)
            continue
        try:
            array = as_numpy(state_dict[name])
        except Exception as error:  # np.asarray runs the array protocols of any class
            problems.append(f"`{name}` cannot be made an array: {error}")
            continue
        if array.dtype.newbyteorder("=") not in known:
            problems.append(f"`{name}` has dtype {array.dtype}, which checkpoints cannot hold.")
        else:
            arrays[name] = np.asarray(array, array.dtype.newbyteorder("<"), order="C")  # keeps rank 0
    if problems:
        raise ConversionError("The state dict cannot be saved:", problems)
    return arrays


def _name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return f"{name!r} is a {type(name).__name__} key, not a string."
    if name == "__metadata__":
        return "`__metadata__` is reserved by the safetensors format."
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"{name!r} is not valid Unicode."
    return None


def _check_metadata(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    text = {"format": "pt"} if metadata is None else dict(metadata)
    if not all(isinstance(part, str) for pair in text.items() for part in pair):
        raise ConversionError(f"`metadata` must map strings to strings, got {text!r}.")
    return text


def _write_safetensors(arrays: dict[str, np.ndarray], path: Path, file: BinaryIO, metadata: dict[str, str]) -> None:
    """The library replaces the file at `path` by one that only its owner may read: restore the usual permissions."""
    mode = os.fstat(file.fileno()).st_mode
    save_file(arrays, path, metadata)
    os.chmod(path, mode)
