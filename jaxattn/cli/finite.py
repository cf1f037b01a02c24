"""Counting what isn't finite in an array, at the cost of what is stored, however often the array shows it."""

import math

import jax.numpy as jnp
import numpy as np

#: Elements that are looked at together: what is made of them stays small beside a large tensor.
_BLOCK = 2**22


def count_bad(array: np.ndarray) -> tuple[int, int]:
    """NaNs and infinities among the elements of a floating array.

    An expanded array has one stored element in many places, and windows overlap: a file of a kilobyte can hold a tensor
    of 1e10 elements.
    """
    kept = tuple(slice(1) if step == 0 else slice(None) for step in array.strides)
    repeats = math.prod(length for length, step in zip(array.shape, array.strides, strict=True) if step == 0)
    if array.size == 0:
        return 0, 0
    array = array[(*kept, ...)]
    span = 1 + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) // array.itemsize
    if array.size <= span:
        nan, infinite = _count(array)
    else:
        stored = np.lib.stride_tricks.as_strided(array, (span,), (array.itemsize,))
        seen = _times_seen(array, span)
        nan, infinite = (int(seen[place].sum()) for place in _where(stored))
    return nan * repeats, infinite * repeats


def _count(array: np.ndarray) -> tuple[int, int]:
    nan = infinite = 0
    blocks = array.reshape(-1) if array.flags.c_contiguous else array
    for start in range(0, len(blocks) if blocks.ndim else 1, step := _rows(blocks)):
        block = blocks[start : start + step] if blocks.ndim else blocks
        finite = int(np.isfinite(_native(block)).sum())
        if finite < block.size:
            not_numbers = int(np.isnan(_native(block)).sum())
            nan, infinite = nan + not_numbers, infinite + block.size - finite - not_numbers
    return nan, infinite


def _rows(array: np.ndarray) -> int:
    return max(1, _BLOCK // max(1, math.prod(array.shape[1:])))


def _where(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    stored = _native(stored)
    return np.flatnonzero(np.isnan(stored)), np.flatnonzero(np.isinf(stored))


def _times_seen(array: np.ndarray, span: int) -> np.ndarray:
    """In how many places of an overlapping array each of the stored elements is: one pass over them for each axis."""
    seen = np.zeros(span, np.int64)
    seen[0] = 1
    for length, step in zip(array.shape, array.strides, strict=True):
        if length == 1:
            continue
        step //= array.itemsize
        rows = -(-span // step)
        padded = np.zeros((rows, step), np.int64)
        padded.reshape(-1)[:span] = seen
        summed = padded.cumsum(axis=0)
        if length < rows:
            summed[length:] -= summed[:-length].copy()
        seen = summed.reshape(-1)[:span]
    return seen


def _native(array: np.ndarray) -> np.ndarray:
    """NumPy's own checks are fast on its own types."""
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def is_floating(dtype: np.dtype) -> bool:
    """Whether it can hold NaN or infinity; bfloat16 and float8 among them."""
    return dtype.kind == "f" or (dtype.kind == "V" and jnp.issubdtype(dtype, jnp.floating))
