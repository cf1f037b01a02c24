"""Copies of Python objects that go through containers, methods and closures, and leave out what can't be copied."""

import copy
import copyreg
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_ATOMS = (type, types.BuiltinFunctionType, types.ModuleType, types.CodeType, str, bytes, int, float, complex)


class ObjectCopier:
    """Copies objects; what is one object there is one object here, however often it is met.

    As copy.deepcopy, except that functions and methods are followed too, because a closure may hold what is copied,
    and that an object which can't be copied (a lock, an open file) is shared instead of making everything fail.
    """

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self._originals: list[Any] = []  # Kept alive, so that no other object gets one of these identities.
        self._methods: dict[type, Callable[[Any], Any]] = {
            list: self._list,
            tuple: self._tuple,
            dict: self._dict,
            types.MethodType: self._bound,
            types.FunctionType: self._function,
            types.CellType: self._cell,
            weakref.ref: self._weak,
        }

    def copy(self, value: Any) -> Any:
        """The copy of `value`, the same one each time."""
        if value is None or value is Ellipsis or isinstance(value, _ATOMS):
            return value
        if id(value) in self.memo:
            return self.memo[id(value)]
        return self._methods.get(type(value), self.copy_object)(value)

    def keep(self, value: Any, made: Any) -> Any:
        """From now on `made` is the copy of `value`."""
        self.memo[id(value)] = made
        self._originals.append(value)
        return made

    def copy_object(self, value: Any) -> Any:
        """An object of any class, by the class's own `__deepcopy__` or by what pickle takes it apart into."""
        try:
            if hasattr(value, "__deepcopy__"):
                return self.keep(value, copy.deepcopy(value, self.memo))
            reduce = copyreg.dispatch_table.get(type(value))
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
            if isinstance(parts, str) or len(parts) > 5:
                return self.keep(value, value)
            return self._rebuilt(value, *parts)
        except Exception:  # whatever a class raises where it can't be copied
            return self.keep(value, value)

    def _rebuilt(
        self, value: Any, make: Any, args: Any, state: Any = None, items: Any = None, pairs: Any = None
    ) -> Any:
        made = self.keep(value, self.copy(make)(*(self.copy(arg) for arg in args)))
        if state is not None:
            state = self.copy(state)
            if hasattr(made, "__setstate__"):
                made.__setstate__(state)
            else:
                attributes, slots = state if isinstance(state, tuple) else (state, None)
                made.__dict__.update(attributes or {})
                for name, item in (slots or {}).items():
                    setattr(made, name, item)
        for item in items or ():
            made.append(self.copy(item))
        for name, item in pairs or ():
            made[self.copy(name)] = self.copy(item)
        return made

    def _list(self, value: list[Any]) -> list[Any]:
        made = self.keep(value, [])
        made.extend(self.copy(item) for item in value)
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = self.keep(value, {})
        made.update((self.copy(name), self.copy(item)) for name, item in value.items())
        return made

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        made = tuple(self.copy(item) for item in value)
        unchanged = all(new is old for new, old in zip(made, value, strict=True))
        return self.keep(value, value if unchanged else made)

    def _bound(self, value: Any) -> Any:
        return self.keep(value, types.MethodType(self.copy(value.__func__), self.copy(value.__self__)))

    def _weak(self, value: Any) -> Any:
        """To the copy of what is copied anyway; a weak reference alone is no reason to copy."""
        return self.keep(value, weakref.ref(self.memo[id(value())])) if id(value()) in self.memo else value

    def _cell(self, value: Any) -> Any:
        made = self.keep(value, types.CellType())
        if _filled(value):
            made.cell_contents = self.copy(value.cell_contents)
        return made

    def _function(self, value: Any) -> Any:
        """The function itself, or one that holds copies where closure, defaults or globals hold what is copied."""
        if getattr(value, "_torchdynamo_wrapper_id", None) == id(value):  # torch.compile's wrapper comes off
            return self.keep(value, self.copy(value._torchdynamo_orig_callable))
        cells, used = value.__closure__ or (), dict(self._globals_used(value))
        if not (cells or used or value.__defaults__ or value.__kwdefaults__):
            return self.keep(value, value)
        own = tuple(types.CellType() for _ in cells)
        made = types.FunctionType(value.__code__, {**value.__globals__} if used else value.__globals__, closure=own)
        self.keep(value, made)
        changed = bool(used)
        for cell, holder in zip(cells, own, strict=True):
            if _filled(cell):
                holder.cell_contents = self.copy(cell.cell_contents)
                changed |= holder.cell_contents is not cell.cell_contents and cell.cell_contents is not value
        made.__defaults__ = self.copy(value.__defaults__)
        made.__kwdefaults__ = value.__kwdefaults__ and self.copy(value.__kwdefaults__)
        changed |= made.__defaults__ is not value.__defaults__
        named = made.__kwdefaults__ or {}
        changed |= any(named[name] is not item for name, item in (value.__kwdefaults__ or {}).items())
        if not changed:
            return self.keep(value, value)
        made.__globals__.update((name, self.copy(item)) for name, item in used.items())
        made.__name__, made.__qualname__, made.__module__ = value.__name__, value.__qualname__, value.__module__
        made.__dict__.update(vars(value))
        return made

    def _globals_used(self, function: Any) -> Iterator[tuple[str, Any]]:
        """Names that the function takes from its module and that stand for something to be copied."""
        for name in _names(function.__code__):
            item = function.__globals__.get(name)
            owner = item.__self__ if isinstance(item, types.MethodType) else item
            if self.is_copied(owner):
                yield name, item

    def is_copied(self, value: Any) -> bool:
        """Whether a global variable that holds `value` is followed."""
        return id(value) in self.memo


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
