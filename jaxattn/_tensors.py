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


def causal_bias(value: Any) -> tuple[int, tuple[int, int]] | None:
    """(offset, (T, S)) of torch.nn.attention.bias.CausalBias: query i sees key j ≤ i + offset. None of anything else.

    Its numbers are never written: what it means is its kind and its lengths.
    """
    if _class_name(type(value)) != "torch.nn.attention.bias.CausalBias":
        return None
    try:
        lower_right = value.variant.name == "LOWER_RIGHT"
        length_q, length_kv = int(value.seq_len_q), int(value.seq_len_kv)
    except AttributeError:
        return None  # what was computed from one, and is none any more
    return length_kv - length_q if lower_right else 0, (length_q, length_kv)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


#: Subclasses that many meet, and what to do; others are refused by their name alone.
_SUBCLASSES = {
    "CausalBias": "is a CausalBias of torch.nn.attention.bias, which is a mask: pass it as `attn_mask` or `mask`",
    "DTensor": "is a distributed tensor: gather it first (tensor.full_tensor())",
    "FakeTensor": "is a fake tensor (FakeTensor) without data: run outside of FakeTensorMode",
    "FunctionalTensor": "is a functional tensor (FunctionalTensor): run outside of torch's transformation",
    "MaskedTensor": "is a masked tensor (MaskedTensor): give its data and its mask (get_data(), get_mask())",
    "NestedTensor": "is a nested tensor: pad it to a dense one first",
    "UninitializedParameter": "is an uninitialised parameter of a lazy module: call the module once first",
    "UninitializedBuffer": "is an uninitialised buffer of a lazy module: call the module once first",
}


def _subclass_problem(kind: type) -> str | None:
    """Only torch.Tensor and Parameter are what their memory holds; a subclass may mean anything by it."""
    name = _class_name(kind)
    if name in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        return None
    known = _SUBCLASSES.get(kind.__name__) if name.startswith("torch.") else None
    return known or (
        f"is a {kind.__name__}, not a plain tensor ({name} may mean anything by its memory): make it one first, by "
        "tensor.as_subclass(torch.Tensor) if its memory is what it means"
    )


def tensor_problem(tensor: Any) -> str | None:
    """Why this torch tensor can't become an array, or None."""
    problem = _subclass_problem(type(tensor)) or layout_problem(tensor)
    if problem:
        return problem
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return "is held by a transformation of torch (torch.func's vmap, grad, functionalize, …): convert it outside"
    return None


def layout_problem(tensor: Any) -> str | None:
    """Why what a tensor's attributes describe is no plain array, or None; a file's description has them too."""
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
    return None


def to_numpy(tensor: Any) -> np.ndarray:
    """The array with the tensor's bits; it shares the tensor's memory when that is on the CPU.

    Raises:
        ConversionError: meta, sparse, quantised, nested, complex and distributed tensors, other subclasses of
            torch.Tensor, and tensors inside a transformation of torch.func.
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


def default_dtype() -> str:
    """torch's own default, "torch.float32" unless it was set."""
    import torch

    return str(torch.get_default_dtype())


def as_numpy(value: Any) -> np.ndarray:
    """A torch tensor or anything NumPy takes, as an array in this machine's byte order."""
    if is_tensor(value):
        return to_numpy(value)
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
