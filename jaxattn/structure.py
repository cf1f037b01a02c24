"""An NNX object taken apart for a jit: its arrays on one side, everything else on the other, and a watch over both."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import jax
from flax import nnx


@dataclass(frozen=True, eq=False)
class Structure:
    """All of an NNX object but its arrays. Equal to itself alone, so hashing it costs nothing."""

    graphdef: Any
    treedef: Any

    def build(self, values: Sequence[Any]) -> Any:
        """A new object of this structure that holds these values, in the order of the slots."""
        return nnx.merge(self.graphdef, jax.tree.unflatten(self.treedef, jax.tree.leaves(values)))


class _Raw(NamedTuple):
    """An array that is an attribute by itself, read like a Variable."""

    array: Any

    def get_raw_value(self) -> Any:
        return self.array


def take_apart(node: Any) -> tuple[Structure, list[Any]]:
    """The structure of an NNX object, and where its arrays are: `slot.get_raw_value()`; a shared Variable is one slot.

    Raises:
        NotImplementedError: a Variable that holds a mutable Ref: what is written to it can't be seen.
    """
    graphdef, state = nnx.split(node, graph=True)
    slots = jax.tree.leaves(state, is_leaf=_is_variable)
    for slot in filter(_is_variable, slots):
        if slot.hijax or slot.ref:
            raise NotImplementedError(
                f"The variables of a {type(node).__name__} must hold arrays, got a {type(slot).__name__} with a Ref; "
                "make it without `ref=True` and `hijax=True`."
            )
    return Structure(graphdef, jax.tree.structure(state)), [
        slot if _is_variable(slot) else _Raw(slot) for slot in slots
    ]


def _is_variable(value: Any) -> bool:
    return isinstance(value, nnx.Variable)


class Watch:
    """Tells whether an attribute of an NNX object, or of a part of it, was set since; values in Variables apart.

    Compares the identities of what modules, lists, tuples, sets and dicts hold, all in C: some 30 ns an attribute.
    """

    def __init__(self, node: Any):
        self._held: list[tuple[Any, dict[Any, Any]]] = []
        known, left = {id(node)}, [node]
        while left:
            container = left.pop()
            items = _items(container)
            self._held.append((container, items))
            for value in items.values():
                if isinstance(value, (nnx.Pytree, list, tuple, set, dict)) and id(value) not in known:
                    known.add(id(value))
                    left.append(value)
        self._views = [view for container, _ in self._held for view in _live_views(container)]
        self._seen = list(chain.from_iterable(self._views))

    def changed(self) -> bool:
        if all(map(operator.is_, chain.from_iterable(self._views), self._seen)):
            return False
        # nnx.grad and nnx.jit reorder attributes and renew Flax's own: that alone is no change.
        if not all(_identical(_items(container), items) for container, items in self._held):
            return True
        self._seen = list(chain.from_iterable(self._views))
        return False

    def kinds(self) -> tuple[type, ...]:
        """Types of all that is held: 1, 1.0 and True are equal, and compute something else."""
        return tuple(type(value) for _, items in self._held for value in items.values())


#: After each view, so that what moves from the end of one to the start of the next is seen.
_END = (object(),)


def _live_views(container: Any) -> list[Iterable[Any]]:
    """What a container holds, each time it is iterated."""
    if isinstance(container, nnx.Pytree):
        return [vars(container).values(), _END]
    return [container, container.values(), _END] if isinstance(container, dict) else [container, _END]


def _items(container: Any) -> dict[Any, Any]:
    """What a container holds now, whatever the order in which its attributes were set."""
    if isinstance(container, nnx.Pytree):
        return {name: value for name, value in sorted(vars(container).items()) if not name.startswith("_pytree__")}
    return dict(container) if isinstance(container, dict) else dict(enumerate(container))


def _identical(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    return len(left) == len(right) and all(left.get(name, _END) is value for name, value in right.items())


def advances(stream: Any, values: Sequence[Any]) -> dict[int, Any]:
    """What an object built of these values wrote to its slots since, by slot."""
    now = [slot.get_raw_value() for slot in take_apart(stream)[1]]
    return {slot: value for slot, value in enumerate(now) if value is not values[slot]}


def contents(node: Any) -> dict[str, list[Any]]:
    """Everything that an NNX object holds, by path; of a Variable its arrays."""
    return {
        ".".join(map(str, path)): jax.tree.leaves(value.get_raw_value()) if _is_variable(value) else [value]
        for path, value in nnx.iter_graph(node, graph=True)
        if not str(path[-1:]).startswith("('_pytree__")
    }


def written(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> list[str]:
    """Paths whose values are others."""
    paths = [*before, *(path for path in after if path not in before)]
    return [path for path in paths if not _same(before.get(path, []), after.get(path, []))]


def _same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        a is b or (isinstance(a, (bool, int, float, str)) and type(a) is type(b) and a == b)
        for a, b in zip(left, right, strict=True)
    )
