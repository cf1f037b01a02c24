"""What is this file really? Content first, name second; what we do not read is refused by its name, in one sentence."""

import io
import os
import pickletools
import re
import stat
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


def pickled_globals(content: bytes) -> list[str]:
    """The classes and functions that pickles name, found by reading their opcodes: nothing is run."""
    found: dict[str, None] = {}
    strings: list[str] = []
    stream = io.BytesIO(content)
    try:
        while stream.tell() < len(content):
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
        if name.rpartition(".")[2] != "scales":
            continue
        weight = dtypes.get(name.removesuffix("scales") + "weight")
        if weight is not None and weight.kind in "iu" and dtype.kind not in "iu":
            raise ConversionError(f"`{path}` {_QUANTISED} (found `{name}` beside an integer weight).")


def foreign_kind(names: Iterable[str]) -> str | None:
    """What kind of other checkpoint these names belong to and what to do, as the rest of a sentence; None for none."""
    foreign = list(filter(_ANY_FOREIGN.search, names))
    for pattern, sentence in _FOREIGN:
        found = [name for name in foreign if re.search(pattern, name)]
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
_ANY_FOREIGN = re.compile("|".join(pattern for pattern, _ in _FOREIGN))
