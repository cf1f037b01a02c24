"""Reading one safetensors file: the library validates the header, the tensors are views of one memory map."""

from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from .._checks import ConversionError
from .bounded_json import check_size, parse_json
from .checkpoint import TensorEntry, TensorFile
from .diagnose import MAX_HEADER
from .mapped import map_file, mapped_array

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""The dtypes we read and write, in the format's own names. Complex and packed sub-byte dtypes are left out."""


def open_safetensors(path: Path) -> TensorFile:
    """The entries of one safetensors file, in the order of their bytes; every problem of the header in one error."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            content = file.read(size if size <= MAX_HEADER else 0)
        check_size(content)
        with safe_open(path, framework="numpy") as file:
            names, metadata = file.offset_keys(), file.metadata() or {}
        header = parse_json(content)
        assert isinstance(header, dict)  # the library has read it
        mapping = map_file(path)
    except SafetensorError as error:
        raise ConversionError(_explain(path, error)) from error
    except (OSError, ValueError) as error:
        raise ConversionError(f"`{path}` cannot be read as safetensors: {error}.") from error
    entries, problems = {}, []
    for name in names:
        info = header[name]
        dtype, shape = DTYPES.get(info["dtype"]), tuple(info["shape"])
        if dtype is None:
            kind = "complex" if info["dtype"].startswith("C") else "packed"
            problems.append(f"`{name}` has the {kind} dtype {info['dtype']}, which is not supported.")
            continue
        start = 8 + size + info["data_offsets"][0]
        entry = TensorEntry(dtype, shape, partial(mapped_array, mapping, start, dtype, shape))
        if problem := entry.problem():
            problems.append(f"`{name}` {problem}.")
        entries[name] = entry
    if problems:
        raise ConversionError(f"`{path}` holds tensors that cannot be read:", problems)
    return TensorFile("safetensors", entries, metadata)


def _explain(path: Path, error: SafetensorError) -> str:
    """One sentence for what the library found."""
    size = path.stat().st_size
    if size < 8:
        return f"`{path}` has {size} bytes, fewer than a safetensors header: it is truncated, download it again."
    with open(path, "rb") as file:
        announced = int.from_bytes(file.read(8), "little")
    if announced > MAX_HEADER:
        return f"`{path}` is not a safetensors file: its first 8 bytes announce a header of {announced} bytes."
    if announced > size - 8:
        return (
            f"`{path}` is truncated or not a safetensors file: it announces a header of {announced} bytes "
            f"and has {size - 8} left. Download it again."
        )
    message = str(error).removeprefix("Error while deserializing header: ")
    if "not fully covered" in message:
        return (
            f"`{path}` is truncated or has bytes that belong to no tensor (its {size} bytes do not match its header): "
            "download it again."
        )
    return f"`{path}` is a damaged safetensors file ({message}): download or save it again."
