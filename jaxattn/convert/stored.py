"""What a PyTorch file describes: tensors as views of storages, storages by name. Nothing here holds numbers."""

from dataclasses import dataclass

ITEMSIZE = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("quint8", "qint8", "quint4x2", "quint2x4", "bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
    **dict.fromkeys(("float4_e2m1fn_x2", *(f"{sign}int{width}" for sign in ("", "u") for width in range(1, 8))), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element, by torch's name of the dtype."""


class NotWeights(ValueError):
    """A pickle that is damaged or asks for more than weights need; `name` is what it named, if that is why."""

    def __init__(self, text: str, name: str | None = None):
        super().__init__(text)
        self.name = name


@dataclass(eq=False, slots=True)
class Opaque:
    """A value that no weight is, which a checkpoint may hold beside its weights: only its kind is kept."""

    kind: str

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(eq=False, slots=True)
class Name(Opaque):
    """A class, function or constant that a pickle may name, dotted."""


@dataclass(eq=False, slots=True)
class TypedStorage:
    """Elements in a row, as the file names them: `key` says where they lie; if untyped they are bytes of any dtype."""

    key: str
    dtype: str
    count: int
    untyped: bool = False

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize


@dataclass(eq=False, slots=True)
class StoredTensor:
    """A tensor as the file describes it: a view of a storage. Offset and strides in bytes.

    It has those of a tensor's attributes by which `layout_problem` tells why one is no plain array.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    storage: TypedStorage | None = None
    offset: int = 0
    strides: tuple[int, ...] = ()
    negative: bool = False
    layout: str = "torch.strided"
    is_meta: bool = False
    is_quantized: bool = False
    is_nested: bool = False

    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")


def kind_of(value: object) -> str:
    """What a value is, for a sentence."""
    return value.kind.rpartition(".")[2] if isinstance(value, Opaque) else type(value).__name__


def check(holds: bool, what: str) -> None:
    if not holds:
        raise NotWeights(f"{what} in it is not what torch.save writes")


def as_name(value: object) -> object:
    """What names an entry of a dict: scalars as they are. Of anything else, whose hashes may clash, only its kind."""
    if type(value) in (str, float, bool, type(None)) or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    check(type(value) not in (dict, list), "a dict")
    return Opaque(kind_of(value))
