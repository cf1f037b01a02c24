"""Tensors and arrays into one another: every bit, every dtype."""

import ml_dtypes
import numpy as np
import pytest
import torch

from jaxattn import ConversionError
from jaxattn._tensors import BITS, as_numpy, to_numpy, to_torch


@pytest.mark.parametrize("name", [*BITS, "float16", "float32", "float64", "int8", "uint8", "int64", "bool"])
def test_bits_survive_both_ways(name):
    dtype = getattr(torch, name)
    raw = torch.arange(256, dtype=torch.uint8) % 2 if name == "bool" else torch.arange(256, dtype=torch.uint8)
    tensor = raw.view(dtype)
    array = to_numpy(tensor)
    assert array.dtype.name == name and array.tobytes() == raw.numpy().tobytes()
    back = to_torch(array)
    assert back.dtype == dtype and torch.equal(back.view(torch.uint8), raw)
    assert not np.shares_memory(back.view(torch.uint8).numpy(), array.view(np.uint8))


def test_special_values_of_bfloat16():
    values = torch.tensor([1.0, -0.0, float("inf"), float("nan"), 3.14, 9.2e-41], dtype=torch.bfloat16)
    assert to_numpy(values).view(np.int16).tolist() == values.view(torch.int16).tolist()


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_shapes_and_strides(shape):
    tensor = torch.zeros(shape, dtype=torch.bfloat16)
    assert to_numpy(tensor).shape == shape and tuple(to_torch(to_numpy(tensor)).shape) == shape
    assert np.array_equal(to_numpy(torch.arange(6.0).reshape(2, 3).T), np.arange(6.0).reshape(2, 3).T)
    parameter = torch.nn.Parameter(torch.ones(2))
    assert as_numpy(parameter).tolist() == [1, 1] and as_numpy([1, 2]).tolist() == [1, 2]


def test_a_dtype_that_torch_lacks():
    with pytest.raises(ConversionError, match="torch has no dtype for float8_e3m4"):
        to_torch(np.zeros(3, ml_dtypes.float8_e3m4))
