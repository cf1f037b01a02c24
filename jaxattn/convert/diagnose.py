"""What is this file really? Content first, name second; what we do not read is refused by its name, in one sentence."""

import io
import os
import pickletools
import re
import stat
import struct
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from .._checks import ConversionError

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
MAX_HEADER = 100_000_000
"""Bytes; the limit the safetensors format sets itself."""

_MAGIC = (
    (b"version https://git-lfs", "is a git-lfs pointer, not the weights: run `git lfs pull`, or download it again"),
    (b"GGUF", "is a GGUF file (llama.cpp), usually quantised: use the original PyTorch or safetensors checkpoint"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file (Keras or TensorFlow weights): export it as safetensors first"),
    (b"\x93NUMPY", "is one NumPy array, without a name: load it with numpy.load and pass a dict of arrays"),
    (b"\x1f\x8b", "is a gzip archive: unpack it first"),
)
_ARCHIVES = (
    (r"(^|/)(constants\.pkl$|code/)", "is a TorchScript archive: torch.jit.load it and save its state_dict()"),
    (r"(^|/)archive_format$", "is a torch.export archive: torch.export.load it and save its state_dict"),
    (r"^model\.weights\.h5$", "is a Keras archive: export its weights as safetensors first"),
    (r"\.npy$", "is a NumPy .npz archive: load it with numpy.load and pass a dict of arrays"),
)


def identify(path: Path) -> str:
    """ "safetensors", "torch-zip", "torch-pickle" or "json", by content.

    Raises:
        ConversionError: the file is none of these; the message says what it is.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConversionError(f"`{path}` is not a regular file.")
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError as error:
        raise ConversionError(f"`{path}` cannot be read: {error.strerror}.") from error
    if not head:
        raise ConversionError(f"`{path}` is empty (0 bytes): download or save it again.")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, sentence in _MAGIC:
        if head.startswith(magic):
            raise ConversionError(f"`{path}` {sentence}.")
    if text.lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise ConversionError(f"`{path}` is a web page, not weights: the download was answered with an error page.")
    if len(head) > 8 and int.from_bytes(head[:8], "little") <= MAX_HEADER and head[8:9] == b"{":
        return "safetensors"
    if head.startswith(b"PK\x03\x04"):
        return "torch-zip"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "torch-pickle"
    if text.startswith(b"{"):
        return "json"
    if path.suffix == ".safetensors":
        return "safetensors"
    known = "safetensors header, PyTorch zip archive, pickle or JSON index"
    raise ConversionError(f"`{path}` is not a checkpoint we know ({known}): it starts with {head[:8]!r}.")


def archive_records(path: Path) -> dict[int, int] | None:
    """Position → size of the storages in a PyTorch zip archive; None when they cannot be mapped as they lie.

    Raises:
        ConversionError: truncated, or another kind of zip archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            starts = _data_starts(archive)
            order = [_raw(archive, starts, record, 8) for record in records if record.filename.endswith("/byteorder")]
    except Exception as error:  # zipfile raises seven kinds of error on damaged archives
        raise ConversionError(
            f"`{path}` is a damaged or truncated zip archive ({error}): download or save it again."
        ) from error
    for pattern, sentence in _ARCHIVES:
        if any(re.search(pattern, name) for name in starts):
            raise ConversionError(f"`{path}` {sentence}.")
    if not any(name.endswith("/data.pkl") for name in starts):
        raise ConversionError(f"`{path}` is a zip archive that torch.save did not write: it has no data.pkl.")
    if any(record.compress_type or record.file_size != record.compress_size for record in records):
        raise ConversionError(f"`{path}` is a compressed archive, which torch.save never writes: save it again.")
    if order not in ([], [sys.byteorder.encode()]):
        return None
    storages = [record for record in records if re.fullmatch(r"[^/]+/data/\d+", record.filename)]
    return {starts[record.filename]: record.file_size for record in storages if record.file_size}


def _data_starts(archive: zipfile.ZipFile) -> dict[str, int]:
    """Where the bytes of each record begin, by its local header, which torch.load trusts when it maps a file.

    Raises:
        zipfile.BadZipFile: a record does not end where the next one begins: its header was damaged.
    """
    starts, stream = {}, archive.fp
    assert stream is not None
    records = sorted(archive.infolist(), key=lambda record: record.header_offset)
    for record, following in zip(records, [*(r.header_offset for r in records[1:]), archive.start_dir], strict=True):
        with archive.open(record):
            pass  # zipfile compares the name
        stream.seek(record.header_offset + 26)
        starts[record.filename] = record.header_offset + 30 + sum(struct.unpack("<HH", stream.read(4)))
        end = starts[record.filename] + record.compress_size
        stream.seek(end)
        descriptor = b"PK\x07\x08" + record.CRC.to_bytes(4, "little")  # may stand between two records
        if end != following and stream.read(8) != descriptor:
            raise zipfile.BadZipFile(f"the header of {record.filename} is damaged")
    return starts


def _raw(archive: zipfile.ZipFile, starts: Mapping[str, int], record: zipfile.ZipInfo, limit: int) -> bytes:
    """The bytes of a stored record, without comparing checksums, which torch can be told to leave out."""
    assert archive.fp is not None
    archive.fp.seek(starts[record.filename])
    return archive.fp.read(min(record.compress_size, limit))


def pickled_globals(path: Path, zipped: bool) -> list[str]:
    """The classes and functions that a pickle names, found by reading its opcodes: nothing is run."""
    limit = 2**22
    try:
        if zipped:
            with zipfile.ZipFile(path) as archive:
                record = next(record for record in archive.infolist() if record.filename.endswith("/data.pkl"))
                stream = io.BytesIO(_raw(archive, _data_starts(archive), record, limit))
        else:
            with open(path, "rb") as file:
                stream = io.BytesIO(file.read(limit))
    except Exception:  # only used to word an error that is already certain
        return []
    found: dict[str, None] = {}
    strings: list[str] = []
    try:
        while stream.tell() < len(stream.getbuffer()):
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL":
                    found[str(argument).replace(" ", ".")] = None
                elif opcode.name == "STACK_GLOBAL":
                    found[".".join(strings[-2:])] = None
                elif isinstance(argument, str):
                    strings.append(argument)
    except Exception:  # damaged, or the raw storages that follow the pickles in an old file
        pass
    return list(found)


def refuse_directory(directory: Path) -> None:
    """Raise for a directory whose files say that it is not a plain checkpoint."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise ConversionError(f"`{directory}` cannot be read: {error.strerror}.") from error
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        raise ConversionError(
            f"`{directory}` is a torch distributed checkpoint: convert it into one file with "
            "torch.distributed.checkpoint.format_utils.dcp_to_torch_save."
        )
    if "adapter_config.json" in names:
        raise ConversionError(f"`{directory}` holds a PEFT adapter, not a whole model: {_MERGE}.")


def refuse_keys(path: Path, dtypes: Mapping[str, np.dtype]) -> None:
    """Raise for names that show another kind of checkpoint: adapters, quantised weights, FSDP's flat parameters."""
    if not dtypes:
        raise ConversionError(f"`{path}` holds no tensors: the state dict is empty.")
    if foreign := foreign_kind(dtypes):
        raise ConversionError(f"`{path}` {foreign}.")
    for name, dtype in dtypes.items():
        weight = dtypes.get(re.sub(r"scales$", "weight", name))
        if re.search(r"(^|\.)scales$", name) and weight is not None and weight.kind in "iu" and dtype.kind not in "iu":
            raise ConversionError(f"`{path}` {_QUANTISED} (found `{name}` beside an integer weight).")


def foreign_kind(names: Iterable[str]) -> str | None:
    """What kind of other checkpoint these names belong to and what to do, as the rest of a sentence; None for none."""
    for pattern, sentence in _FOREIGN:
        found = [name for name in names if re.search(pattern, name)]
        if found:
            return f"{sentence} (found `{found[0]}` and {len(found) - 1} more like it)"
    return None


_MERGE = "merge it into its base model with PEFT's merge_and_unload() and save that"
_QUANTISED = "is a quantised checkpoint: use the original, or dequantise it and save that"
_FOREIGN = (
    (r"(^|\.)lora_(A|B|embedding_A|embedding_B|magnitude_vector|up|down)(\.|$)", f"is a PEFT (LoRA) adapter: {_MERGE}"),
    (
        r"(^|\.)(qweight|qzeros|absmax|SCB|quant_map|quant_state|weight_packed|weight_scale|weight_scale_inv)(\.|$)",
        _QUANTISED,
    ),
    (
        r"(^|\.)_?flat_param(_\d+)?(\.|$)",
        "is an FSDP checkpoint of flattened parameters: save it again with StateDictType.FULL_STATE_DICT",
    ),
)
