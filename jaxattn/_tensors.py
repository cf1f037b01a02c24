"""PyTorch tensors and NumPy arrays into one another, bit for bit; torch is touched only when a tensor comes."""

from typing import Any

import ml_dtypes
import numpy as np

from ._checks import ConversionError

#: torch dtypes that NumPy has no own name for, and the integer of the same width that carries their bits.
BITS = {
    "bfloat16": (ml_dtypes.bfloat16, "int16"),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "uint8"),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, "uint8"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "uint8"),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, "uint8"),
    "float8_e8m0fnu": (ml_dtypes.float8_e8m0fnu, "uint8"),
}


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def tensor_problem(tensor: Any) -> str | None:
    """Why this torch tensor can't become an array, or None."""
    if tensor.is_meta:
        return "is a meta tensor without data: materialise the module (to_empty, or load its weights) first"
    if tensor.is_quantized:
        return "is quantised: dequantise it first (tensor.dequantize())"
    if tensor.is_nested:
        return "is a nested tensor: pad it to a dense one first"
    if str(tensor.layout) != "torch.strided":
        return f"has layout {tensor.layout}: make it dense first (tensor.to_dense())"
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): no attention weight is; split it into real and imaginary parts"
    if type(tensor).__name__ == "DTensor":
        return "is a distributed tensor: gather it first (tensor.full_tensor())"
    return None


def to_numpy(tensor: Any) -> np.ndarray:
    """The array with the tensor's bits; it shares the tensor's memory when that is on the CPU.

    Raises:
        ConversionError: meta, sparse, quantised, nested, complex and distributed tensors.
    """
    problem = tensor_problem(tensor)
    if problem:
        raise ConversionError(f"A tensor {problem}.")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in BITS:
        return tensor.numpy()
    import torch

    dtype, carrier = BITS[name]
    return tensor.contiguous().view(getattr(torch, carrier)).numpy().view(dtype)


def to_torch(array: np.ndarray) -> Any:
    """The torch tensor with the array's bits, in memory of its own.

    Raises:
        ConversionError: a dtype that torch doesn't have.
        ImportError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError('PyTorch tensors need torch: pip install "jaxattn[torch]".') from error
    array = np.array(array, order="C")
    name = array.dtype.name
    if name in BITS:
        return torch.from_numpy(array.view(BITS[name][1])).view(getattr(torch, name))
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ConversionError(f"torch has no dtype for {name}: cast the array first.") from error


def as_numpy(value: Any) -> np.ndarray:
    """A torch tensor or anything NumPy takes, as an array in this machine's byte order."""
    if is_tensor(value):
        return to_numpy(value)
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
