"""Transposing and aligned copies: the bits, the memory, and what JAX does with it."""

import gc
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxattn.convert import layout

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "complex128", "bfloat16", "float8_e4m3fn"]


def random_bits(shape, dtype, seed=0):
    """Any bits of this dtype, NaN payloads included."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (1031, 1), (1, 1031), (1031, 523), (2, 3, 257, 401), (0, 7), (3, 0)])
def test_transpose_moves_every_bit(dtype, shape):
    a = random_bits(shape, dtype)
    out = layout.transpose(a)
    assert same_bits(out, np.ascontiguousarray(a.swapaxes(-1, -2)))
    assert out.flags.c_contiguous and out.flags.writeable and not np.shares_memory(out, a)
    assert out.size == 0 or out.ctypes.data % layout.ALIGNMENT == 0


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2, ::-3], lambda a: np.asfortranarray(a)])
def test_transpose_takes_any_strides(view):
    a = view(random_bits((1200, 900), "float32"))
    assert same_bits(layout.transpose(a), np.ascontiguousarray(a.T))


def test_transpose_of_a_read_only_expanded_array():
    a = np.broadcast_to(np.arange(600, dtype=np.float32), (700, 600))
    assert same_bits(layout.transpose(a), np.ascontiguousarray(a.T))


@pytest.mark.parametrize("shape", [(), (5,)])
def test_transpose_needs_two_axes(shape):
    with pytest.raises(ValueError, match="rank 2 or more"):
        layout.transpose(np.zeros(shape))


@pytest.mark.parametrize("block", [(1, 1), (7, 3), (512, 128), (4096, 4096)])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_block_size_and_thread_count_copies_everything(block, workers):
    source = random_bits((2, 37, 53), "float32")
    out = np.zeros((2, 53, 37), np.float32)
    layout.copy_in_blocks(out, source.swapaxes(-1, -2), block, workers)
    assert same_bits(out, np.ascontiguousarray(source.swapaxes(-1, -2)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (1100, 1000)])
def test_aligned_copy_of_any_rank(dtype, shape):
    a = random_bits(shape, dtype)
    out = layout.aligned_copy(a)
    assert same_bits(out, a) and not np.shares_memory(out, a)
    assert out.flags.c_contiguous and out.flags.writeable
    assert out.size == 0 or out.ctypes.data % layout.ALIGNMENT == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(3, 5), (1100, 1000)])
def test_jax_adopts_the_memory_and_keeps_it_alive(dtype, shape):
    a = random_bits(shape, "uint8").astype(getattr(ml_dtypes, dtype, dtype))
    out = layout.transpose(a)
    array = jax.device_put(out, jax.devices("cpu")[0])
    assert array.unsafe_buffer_pointer() == out.ctypes.data
    out_dtype = out.dtype
    del out
    gc.collect()
    np.full((1100, 1000), 7, out_dtype)  # would land in memory that was freed too early
    assert same_bits(np.asarray(array), np.ascontiguousarray(a.T))


def test_a_donated_array_leaves_jax_results_right():
    out = layout.aligned_copy(np.ones((700, 800), np.float32))
    array = jax.device_put(out, jax.devices("cpu")[0])
    result = jax.jit(lambda x: x * 2, donate_argnums=0)(array)
    del out, array
    gc.collect()
    assert (np.asarray(result) == 2).all()


FORK = """
import os, signal
import numpy as np
from jaxattn.convert.layout import transpose
a = np.ones((1000, 900), np.float32)
transpose(a)
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(int(transpose(a).sum() != 900_000))
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_gets_threads_of_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)
