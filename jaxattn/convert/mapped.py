"""Arrays over a memory-mapped file, whose pages leave the process with the last view of them."""

import math
import mmap
import weakref
from pathlib import Path

import numpy as np

_RELEASE = 64 * 1024
"""Bytes. Smaller arrays leave their pages to the operating system."""


def map_file(path: Path) -> mmap.mmap:
    """One read-only map for a whole file: every map holds a file descriptor, and a process has few of them."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def mapped_array(
    mapping: mmap.mmap, start: int, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> np.ndarray:
    """A read-only array over the bytes from `start`.

    Args:
        mapping: from map_file.
        start: the position of the first element.
        dtype: little-endian, any alignment.
        shape: may hold zeros.
        strides: in bytes, none negative; C order when None.

    Raises:
        ValueError: the elements do not lie inside the file.
    """
    if 0 in shape:
        return np.frombuffer(b"", dtype).reshape(shape)
    if strides is None:
        count = math.prod(shape) * dtype.itemsize
    else:
        count = dtype.itemsize + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    data = np.frombuffer(mapping, np.uint8, count, start)
    if count >= _RELEASE and hasattr(mmap, "MADV_DONTNEED"):
        weakref.finalize(data, _release_pages, mapping, start, count).atexit = False
    if start % dtype.itemsize:
        data = data.copy()  # arithmetic on unaligned memory is slow at best
        data.flags.writeable = False
    return np.ndarray(shape, dtype, data, strides=strides)


def _release_pages(mapping: mmap.mmap, start: int, count: int) -> None:
    """Drop clean pages; a neighbour's bytes on the first and last page come back from the file when touched."""
    first = start - start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, first, start + count - first)
