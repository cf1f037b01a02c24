"""A checkpoint as a lazy, read-only mapping from name to NumPy array."""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._checks import ConversionError


class TensorEntry(NamedTuple):
    """One tensor in a file: what is known without reading it, and how to read it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    def problem(self) -> str | None:
        """Why NumPy cannot hold this tensor (rank or size), or None. Nothing is allocated."""
        if len(self.shape) <= 32 and math.prod(length or 1 for length in self.shape) < 2**50:
            return None
        try:
            np.broadcast_to(np.empty((), self.dtype), self.shape)
        except ValueError as error:
            return f"has shape {self.shape}, which NumPy cannot hold: {error}"
        return None


class TensorFile(NamedTuple):
    """One opened file: `format` is "safetensors" or "torch", `key` where a nested state dict was found."""

    format: str
    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    key: str | None = None


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint by name: `checkpoint[name]` reads that tensor now, and nothing is kept.

    Arrays are read-only and backed by the file where it can be memory-mapped; bfloat16 and float8 come as ml_dtypes
    arrays, bit for bit. Copy an array that must outlive a change of the file in place. A pickle holds the path and no
    tensors: unpickling opens the files again, and refuses files that have changed.

    Attributes:
        path: what was asked for: a file, an index or a directory.
        files: the files that hold the tensors.
        format: "safetensors", "torch", or "mixed" when shards differ.
        key: the dotted path of the state dict inside a torch checkpoint, None when it is the top level.
        metadata: the text that a safetensors file carries beside its tensors.
    """

    def __init__(self, path: Path, files: tuple[Path, ...], content: TensorFile):
        self.path = path
        self.files = files
        self.format = content.format
        self.key = content.key
        self.metadata = dict(content.metadata)
        self._entries = content.entries
        self._stamps = tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, files))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._entries[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def dtype(self, name: str) -> np.dtype:
        """The dtype of a tensor, without reading it."""
        return self._entries[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return self._entries[name].shape

    def nbytes(self, name: str) -> int:
        """The size of a tensor in bytes, without reading it."""
        entry = self._entries[name]
        size = entry.dtype.itemsize
        for length in entry.shape:
            size *= length
        return size

    def __copy__(self) -> "Checkpoint":
        copied = object.__new__(Checkpoint)
        copied.__dict__ |= {**self.__dict__, "metadata": dict(self.metadata)}
        return copied

    def __deepcopy__(self, memo: Any) -> "Checkpoint":
        return copy(self)  # what it reads can't be changed

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.path.absolute(), self.key, self._stamps)

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key else ""
        total = sum(map(self.nbytes, self)) / 2**20
        return f"Checkpoint({str(self.path)!r}, format={self.format!r}{key}, {len(self)} tensors, {total:.1f} MiB)"


def _open_again(path: Path, key: str | None, stamps: tuple[tuple[int, int], ...]) -> Checkpoint:
    from .files import read_checkpoint  # which imports this module

    checkpoint = read_checkpoint(path, key=key)
    if checkpoint._stamps != stamps:
        raise ConversionError(
            f"`{path}` must be the files that were pickled, got others in size or time of change: read_checkpoint them."
        )
    return checkpoint
