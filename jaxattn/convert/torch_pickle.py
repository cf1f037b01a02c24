"""The pickles in PyTorch files, read as data: nothing in them is called, and what reading takes is bounded.

It knows the operations that torch.load(weights_only=True) knows. Whatever they make is a plain value, or a description:
a tensor is a view of a storage, a storage is a name.
"""

import mmap
import pickle
import struct
from collections.abc import Callable

from .stored import Name, NotWeights, TypedStorage, as_name, check
from .torch_names import called, named, storage_dtype

MAX_OPERATIONS = 10_000_000
MAX_OBJECTS = 3_000_000
"""In units of 64 bytes. A checkpoint of 50,000 tensors takes a third of it."""
MAX_DEPTH = 200
"""Of values inside values."""


class Reader:
    """Reads one pickle after the other; `storages` are those that they named, by key.

    Args:
        data: the mapped file.
        position: where the first pickle starts; later, where the next one does.
        end: where the last one must end.
        fields: what describes a storage: 5 values in a zip archive, 6 in the format before it.
    """

    def __init__(self, data: mmap.mmap, position: int, end: int, fields: int):
        self.data, self.position, self.end, self.fields = data, position, end, fields
        self.storages: dict[str, TypedStorage] = {}
        self.left = MAX_OBJECTS
        self.stack: list = []
        self.marks: list[list] = []
        self.memo: list = []

    def load(self) -> object:
        """The value of the next pickle.

        Raises:
            NotWeights: it is damaged, or holds more than weights need.
        """
        self.stack, self.marks, self.memo = [], [], []
        data, end, operations = self.data, self.end, _OPERATIONS
        try:
            for _ in range(MAX_OPERATIONS):
                position = self.position
                if position >= end:
                    raise NotWeights("it is cut off")
                code = data[position]
                self.position = position + 1
                if code == _STOP:
                    check(len(self.stack) == 1 and not self.marks, "the end")
                    return _checked_depth(self.stack.pop())
                operations[code](self)
        except NotWeights:
            raise
        except Exception as error:  # an operation on the wrong kind of value, or on nothing
            raise NotWeights(f"it is damaged near byte {self.position}") from error
        raise NotWeights(f"it takes more than {MAX_OPERATIONS:,} operations, which no weights do")

    def take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > self.end:
            raise NotWeights("it is cut off")
        return self.data[start : self.position]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def push(self, value: object, units: int = 1) -> None:
        """A new object on the stack."""
        self.left -= units
        if self.left < 0:
            raise NotWeights("it holds more objects than weights need")
        self.stack.append(value)

    def line(self) -> str:
        start = self.position
        stop = self.data.find(b"\n", start, min(self.end, start + 300))
        check(stop >= 0, "a name")
        self.position = stop + 1
        return self.data[start:stop].decode()

    def marked(self) -> list:
        items, self.stack = self.stack, self.marks.pop()
        return items


def _checked_depth(root: object) -> object:
    """The value, looked through level by level: what works on it may work by recursion."""
    level: list = [root]
    seen: set[int] = set()
    for _ in range(MAX_DEPTH):
        found = {id(value): value for value in level if type(value) in (dict, list, tuple) and id(value) not in seen}
        if not found:
            return root
        seen.update(found)
        level = [inner for value in found.values() for inner in (value.values() if type(value) is dict else value)]
    raise NotWeights(f"its values lie in one another deeper than {MAX_DEPTH} levels")


def _global(reader: Reader) -> None:
    reader.push(named(reader.line(), reader.line()))


def _reduce(reader: Reader) -> None:
    arguments = reader.stack.pop()
    reader.push(called(reader.stack.pop(), arguments), 4)


def _build(reader: Reader) -> None:
    """The state of a dict: attributes such as a state dict's `_metadata`, which no entry is."""
    state = reader.stack.pop()
    check(type(state) is dict and type(reader.stack[-1]) is dict, "an object's state")


def _persistent(reader: Reader) -> None:
    described = reader.stack.pop()
    check(type(described) is tuple and len(described) == reader.fields, "a storage")
    tag, kind, key, location, count, *view = tuple(described)
    dtype = storage_dtype(kind.kind) if type(kind) is Name else None
    told = type(key) is type(location) is str and type(count) is int and count >= 0
    if tag != "storage" or dtype is None or not told or view not in ([], [None]):
        raise NotWeights("a storage in it is not what torch.save writes")
    storage = reader.storages.setdefault(key, TypedStorage(key, dtype, count, "Untyped" in kind.kind))
    check((storage.dtype, storage.count) == (dtype, count), "a storage that is described in two ways")
    reader.push(storage)


def _set_items(reader: Reader, items: list) -> None:
    target = reader.stack[-1]
    check(type(target) is dict and len(items) % 2 == 0, "a dict")
    for name, value in zip(items[::2], items[1::2], strict=True):
        target[as_name(name)] = value


def _set_item(reader: Reader) -> None:
    items = [reader.stack.pop(), reader.stack.pop()]
    _set_items(reader, items[::-1])


def _extend(reader: Reader, items: list) -> None:
    check(type(reader.stack[-1]) is list, "a list")
    reader.stack[-1].extend(items)


def _mark(reader: Reader) -> None:
    reader.left -= 1
    check(len(reader.marks) < MAX_DEPTH * 4 and reader.left > 0, "nesting so deep")
    reader.marks.append(reader.stack)
    reader.stack = []


def _marked_tuple(reader: Reader) -> None:
    items = tuple(reader.marked())
    reader.push(items, 1 + len(items) // 8)


def _tuple(count: int) -> Callable[[Reader], None]:
    def make(reader: Reader) -> None:
        items = tuple(reader.stack[-count:])
        check(len(items) == count, "a tuple")
        del reader.stack[-count:]
        reader.push(items)

    return make


def _text(width: int, errors: str) -> Callable[[Reader], None]:
    def make(reader: Reader) -> None:
        size = reader.number(width)
        reader.left -= size // 16
        check(reader.left > 0, "so much text")
        reader.push(reader.take(size).decode("utf-8", errors))

    return make


def _integer(width: int, signed: bool = False) -> Callable[[Reader], None]:
    return lambda reader: reader.push(int.from_bytes(reader.take(width), "little", signed=signed))


def _long(reader: Reader) -> None:
    reader.push(int.from_bytes(reader.take(reader.number(1)), "little", signed=True), 5)


def _put(width: int) -> Callable[[Reader], None]:
    def make(reader: Reader) -> None:
        place = reader.number(width)
        check(place <= len(reader.memo), "a place in its memo")
        reader.memo[place : place + 1] = [reader.stack[-1]]

    return make


def _get(width: int) -> Callable[[Reader], None]:
    return lambda reader: reader.stack.append(reader.memo[reader.number(width)])


def _constant(value: object) -> Callable[[Reader], None]:
    return lambda reader: reader.stack.append(value)


_STOP = pickle.STOP[0]
_OPERATIONS: dict[int, Callable[[Reader], None]] = {
    code[0]: operation
    for code, operation in {
        pickle.PROTO: lambda reader: reader.take(1),
        pickle.GLOBAL: _global,
        pickle.REDUCE: _reduce,
        pickle.BUILD: _build,
        pickle.BINPERSID: _persistent,
        pickle.MARK: _mark,
        pickle.TUPLE: _marked_tuple,
        pickle.TUPLE1: _tuple(1),
        pickle.TUPLE2: _tuple(2),
        pickle.TUPLE3: _tuple(3),
        pickle.EMPTY_TUPLE: _constant(()),
        pickle.EMPTY_LIST: lambda reader: reader.push([], 2),
        pickle.EMPTY_DICT: lambda reader: reader.push({}, 4),
        pickle.APPEND: lambda reader: _extend(reader, [reader.stack.pop()]),
        pickle.APPENDS: lambda reader: _extend(reader, reader.marked()),
        pickle.SETITEM: _set_item,
        pickle.SETITEMS: lambda reader: _set_items(reader, reader.marked()),
        pickle.NONE: _constant(None),
        pickle.NEWTRUE: _constant(True),
        pickle.NEWFALSE: _constant(False),
        pickle.BININT: _integer(4, signed=True),
        pickle.BININT1: _integer(1),
        pickle.BININT2: _integer(2),
        pickle.LONG1: _long,
        pickle.BINFLOAT: lambda reader: reader.push(struct.unpack(">d", reader.take(8))[0]),
        pickle.BINUNICODE: _text(4, "surrogatepass"),
        pickle.SHORT_BINSTRING: _text(1, "strict"),
        pickle.BINPUT: _put(1),
        pickle.LONG_BINPUT: _put(4),
        pickle.BINGET: _get(1),
        pickle.LONG_BINGET: _get(4),
    }.items()
}
