"""What the pickle in a PyTorch file may name, and what each name makes here: descriptions, never objects of torch."""

import re
from collections.abc import Callable
from typing import Any

from .stored import ITEMSIZE, Name, NotWeights, Opaque, StoredTensor, TypedStorage, as_name, check, kind_of

_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "QUInt8": "quint8",
    "QInt8": "qint8",
    "QInt32": "qint32",
    "QUInt4x2": "quint4x2",
    "QUInt2x4": "quint2x4",
}
_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn")
_QUANTIZERS = ("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric")
_OF_TORCH = frozenset(
    "H T _backward_hooks _base _cdata _grad _grad_fn _has_symbolic_sizes_strides _post_accumulate_grad_hooks "
    "_python_dispatch _version data device dtype grad grad_dtype grad_fn imag is_cpu is_cuda is_ipu is_leaf is_maia "
    "is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize "
    "layout mH mT name names nbytes ndim output_nr real requires_grad retains_grad shape volatile".split()
)
"""Attributes that torch itself gives a tensor: `data` in a pickled state would exchange the tensor's values."""


def named(module: str, name: str) -> Name:
    """What a pickle names, if weights need it.

    Raises:
        NotWeights: anything else, whatever torch or the process allow.
    """
    text = f"{module.replace('__builtin__', 'builtins')}.{name}"
    if text in _CALLS or text in _PLAIN or storage_dtype(text):
        return Name(text)
    raise NotWeights(f"it names `{text}`", text)


def called(name: object, arguments: object) -> object:
    """What a call of a name with these arguments describes."""
    call = _CALLS.get(name.kind) if type(name) is Name else None
    if call is None or type(arguments) is not tuple:
        raise NotWeights(f"it calls `{getattr(name, 'kind', kind_of(name))}`", getattr(name, "kind", None))
    try:
        return call(*arguments)
    except TypeError as error:  # too few or too many
        raise NotWeights("a call in it has other arguments than torch.save writes") from error


def storage_dtype(text: str) -> str | None:
    """The dtype of a storage class by its dotted name."""
    if text in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        return "uint8"
    found = re.fullmatch(r"torch(?:\.cuda)?\.(\w+)Storage", text)
    return _STORAGES.get(found[1]) if found else None


def _bare_tensor(storage: Any, offset: Any, size: Any, stride: Any) -> StoredTensor:
    return _tensor(storage, offset, size, stride, False, None)


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> StoredTensor:
    check(type(storage) is TypedStorage, "a storage")
    return _strided(storage, storage.dtype, offset, size, stride, requires_grad, hooks, metadata)


def _tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor:
    check(type(storage) is TypedStorage and type(dtype) is Name, "a storage")
    return _strided(storage, _dtype(dtype), offset, size, stride, requires_grad, hooks, metadata)


def _strided(
    storage: Any, dtype: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any
) -> StoredTensor:
    _check_shape(size, stride)
    check(type(offset) is int and offset >= 0, "an offset")
    negative = type(metadata) is dict and len(metadata) == 1 and metadata.get("neg") is True
    check(metadata is None or metadata == {} or (negative and dtype in ("float16", "float32", "float64")), "metadata")
    _check_gradient(dtype, requires_grad, hooks)
    itemsize = ITEMSIZE[dtype]
    if 0 in size:
        offset = 0
    else:
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        check((last + 1) * itemsize <= storage.nbytes, "a tensor that is larger than its storage")
    strides = tuple(step * itemsize for step in stride)
    return StoredTensor(dtype, size, storage, offset * itemsize, strides, negative)


def _check_shape(size: object, stride: object) -> None:
    for numbers in (size, stride):
        check(type(numbers) is tuple and all(type(n) is int and 0 <= n < 2**63 for n in numbers), "a shape")
    assert isinstance(size, tuple) and isinstance(stride, tuple)
    check(len(size) == len(stride), "a shape")


def _check_gradient(dtype: str, requires_grad: object, hooks: object) -> None:
    check(type(requires_grad) is bool and (not requires_grad or "float" in dtype or "complex" in dtype), "a gradient")
    check(hooks is None or hooks == {}, "a hook")


def _dtype(name: object) -> str:
    dtype = name.kind.removeprefix("torch.") if type(name) is Name else ""
    check(dtype in ITEMSIZE, "a dtype")
    return dtype


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> StoredTensor:
    return _parameter_with_state(data, requires_grad, hooks, None)


def _parameter_with_state(data: Any, requires_grad: Any, hooks: Any, state: Any) -> StoredTensor:
    check(type(data) is StoredTensor, "a parameter")
    _check_gradient(data.dtype, requires_grad, hooks)
    _check_state(state)
    return data


def _with_attributes(function: Any, kind: Any, arguments: Any, state: Any) -> StoredTensor:
    check(type(kind) is Name and type(function) is Name, "a tensor's class")
    if kind.kind != "torch.Tensor" or function.kind in (_FROM_TYPE, "torch._utils._rebuild_parameter"):
        raise NotWeights(f"it names `{kind.kind}`", kind.kind)
    _check_state(state)
    tensor = called(function, arguments)
    if type(tensor) is not StoredTensor:
        raise NotWeights("a tensor in it is not what torch.save writes")
    return tensor


def _check_state(state: object) -> None:
    """A tensor's attributes in Python are left out; those that would make it another tensor are refused."""
    for part in state if type(state) is tuple and len(state) == 2 else (state,):
        check(part is None or type(part) is dict, "a tensor's state")
        assert part is None or isinstance(part, dict)
        for name in part or ():
            if type(name) is not str or name in _OF_TORCH or name.startswith("__"):
                raise NotWeights(f"it gives a tensor the attribute {name!r}, which is torch's own")


def _quantised(
    storage: Any, offset: Any, size: Any, stride: Any, quantizer: Any, requires_grad: Any, hooks: Any
) -> StoredTensor:
    _check_shape(size, stride)
    check(type(storage) is TypedStorage and type(quantizer) is tuple, "a storage")
    return StoredTensor(storage.dtype, size, storage, is_quantized=True)


def _meta(dtype: Any, size: Any, stride: Any, requires_grad: Any) -> StoredTensor:
    _check_shape(size, stride)
    return StoredTensor(_dtype(dtype), size, is_meta=True)


def _sparse(layout: Any, data: Any) -> StoredTensor:
    check(type(layout) is Name and type(data) is tuple, "a layout")
    return StoredTensor("", layout=layout.kind)


def _layout(text: Any) -> Name:
    check(type(text) is str and text.removeprefix("torch.") in _LAYOUTS, "a layout")
    return Name(text)


def _nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> StoredTensor:
    return StoredTensor("", is_nested=True)


def _bytes(text: Any, encoding: Any) -> Opaque:
    check(type(text) is str and encoding == "latin1" and all(letter <= "\xff" for letter in text), "a string of bytes")
    return Opaque("bytes")


def _size(numbers: Any) -> Opaque:
    check(type(numbers) in (tuple, list) and all(type(number) is int for number in numbers), "a size")
    return Opaque("Size")


def _complex(real: Any, imaginary: Any) -> Opaque:
    check(type(real) is type(imaginary) is float, "a number")
    return Opaque("complex")


def _set(items: Any) -> Opaque:
    check(type(items) is list, "a set")
    return Opaque("set")


def _counter(counts: Any = None) -> Opaque:
    check(counts is None or type(counts) is dict, "a counter")
    return Opaque("Counter")


def _ordered_dict(pairs: Any = ()) -> dict[object, object]:
    check(
        type(pairs) in (tuple, list) and all(type(pair) in (tuple, list) and len(pair) == 2 for pair in pairs), "a dict"
    )
    return {as_name(name): value for name, value in pairs}


def _device(kind: Any, index: Any = 0) -> Opaque:
    check(type(kind) is str and type(index) is int, "a device")
    return Opaque("device")


_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_CALLS: dict[str, Callable[..., object]] = {
    "torch._utils._rebuild_tensor": _bare_tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter_with_state,
    _FROM_TYPE: _with_attributes,
    "torch._utils._rebuild_qtensor": _quantised,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch.serialization._get_layout": _layout,
    "torch.Size": _size,
    "torch.device": _device,
    "collections.OrderedDict": _ordered_dict,
    "collections.Counter": _counter,
    "_codecs.encode": _bytes,
    "builtins.complex": _complex,
    "builtins.set": _set,
}
_PLAIN = frozenset(
    ["torch.Tensor", "torch.storage.UntypedStorage", "torch.UntypedStorage"]
    + [f"torch.{name}" for name in (*ITEMSIZE, *_QUANTIZERS, *_LAYOUTS)]
)
