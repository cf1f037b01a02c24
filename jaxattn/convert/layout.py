"""Moving a tensor into JAX's layout fast: transposed by blocks, in memory that JAX adopts without another copy."""

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

ALIGNMENT = 64
"""Bytes. `jax.device_put` adopts a NumPy array on the CPU without copying when its memory starts on this boundary."""

OWN_PAGES = 2**22
"""Bytes from which NumPy asks for huge pages."""

# Picked from `python -m benchmarks load --sweep` (benchmarks/results/load_sweep.json).
BLOCK = (256, 384)
"""The rows and columns of the result that are copied at once; their bytes fit the second-level cache."""
SMALL = 128 * 1024
"""Bytes of one matrix. Below this a plain copy is at least as fast as blocks."""
SHARE = 512 * 1024
"""Bytes that every thread must have to copy before another one pays."""
MAX_THREADS = 8


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised C-contiguous memory that starts on a 64-byte boundary.

    Large arrays get pages of the system's usual size. NumPy would ask for huge ones: with those, loading a checkpoint
    of 1 GiB took 1.4 times as long here, and twice as long while the machine was busy.
    """
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size >= OWN_PAGES and hasattr(mmap, "MAP_ANONYMOUS"):
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype).reshape(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(a: np.ndarray) -> np.ndarray:
    """A C-contiguous copy of `a`, of any rank, in 64-byte aligned memory: `jax.device_put` takes it over as it is.

    The array that `device_put` returns shares this memory and keeps it alive, so write to it before, never after.
    """
    a = np.asarray(a)
    if a.dtype.hasobject:
        return np.array(a, order="C", subok=False)
    out = aligned_empty(a.shape, a.dtype)
    _as_bits(out)[...] = _as_bits(a)
    return out


def transpose(a: np.ndarray) -> np.ndarray:
    """A C-contiguous, 64-byte aligned copy of `a` with its last two axes swapped: out[…, j, i] = a[…, i, j].

    Large arrays are copied in blocks that stay in the cache, by several threads (NumPy releases the GIL while copying).

    Args:
        a: any dtype, any strides, rank 2 or more.

    Raises:
        ValueError: the rank is below 2.
    """
    a = np.asarray(a)
    if a.ndim < 2:
        raise ValueError(f"`transpose` needs an array of rank 2 or more, got shape {a.shape}.")
    swapped = a.swapaxes(-1, -2)
    matrix_bytes = a.shape[-2] * a.shape[-1] * a.itemsize
    if a.dtype.hasobject or a.size == 0 or matrix_bytes < SMALL or swapped.flags.c_contiguous:
        return aligned_copy(swapped)
    out = aligned_empty(swapped.shape, a.dtype)
    copy_in_blocks(_as_bits(out), _as_bits(swapped), BLOCK, min(threads(), max(1, a.nbytes // SHARE)))
    return out


def copy_in_blocks(out: np.ndarray, source: np.ndarray, block: tuple[int, int], workers: int) -> None:
    """out[…] = source in blocks of (rows, columns) of at most this size, by this thread and `workers` − 1 helpers.

    Threads take the next rows when they are done, and a helper that has not woken up by the end is not waited for: on
    a busy machine that costs more than its share of the work.
    """
    slabs = iter(list(_slabs(out, source, block[0])))  # a list iterator hands each one out once, whoever asks
    copy = partial(_copy_slabs, slabs, block)
    helpers = [_pool(workers - 1).submit(copy) for _ in range(workers - 1)]
    copy()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def threads() -> int:
    """The number of threads a large transpose uses: the CPUs this process may run on, at most 8."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MAX_THREADS)


def _slabs(out: np.ndarray, source: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of (destination, source) matrices: `rows` consecutive rows of every matrix of `out`."""
    for index in np.ndindex(out.shape[:-2]):
        for start in range(0, out.shape[-2], rows):
            yield out[index][start : start + rows], source[index][start : start + rows]


def _copy_slabs(slabs: Iterator[tuple[np.ndarray, np.ndarray]], block: tuple[int, int]) -> None:
    """Each block goes through a small buffer: rows a power of two apart would push one another out of the cache."""
    rows, columns = block
    buffer = None
    for out, source in slabs:
        if buffer is None:
            buffer = np.empty((columns, rows + ALIGNMENT // out.itemsize), out.dtype)
        for start in range(0, out.shape[1], columns):
            block_out, block_in = out[:, start : start + columns], source[:, start : start + columns].T
            block_buffer = buffer[: block_in.shape[0], : block_in.shape[1]]
            block_buffer[...] = block_in
            block_out[...] = block_buffer.T


def _as_bits(a: np.ndarray) -> np.ndarray:
    """The same memory as plain integers: ml_dtypes' own copy loops are slow and hold the GIL."""
    return a.view(f"u{a.dtype.itemsize}") if a.dtype.itemsize in (1, 2, 4, 8) else a


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="jaxattn-layout")


if hasattr(os, "register_at_fork"):  # a forked child inherits the pool without its threads, and would wait for ever
    os.register_at_fork(after_in_child=_pool.cache_clear)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Dtype, shape and every bit; NaN payloads and −0.0 count."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
