"""The first part that is right itself and gets other arguments in Flax than in torch."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention_inside import additive, given
from .findings import same
from .flax_calls import FlaxCall
from .measuring import Measured, Sides

#: What is added to logits to block, and isn't minus infinity.
_BLOCKING = -1e4


@dataclass(frozen=True)
class Difference:
    """One argument, by torch's name, that both sides pass otherwise; None where a side passes none."""

    name: str
    theirs: Any
    mine: Any

    @property
    def is_mask(self) -> bool:
        arrays = [array for array in (self.theirs, self.mine) if isinstance(array, np.ndarray)]
        return bool(arrays) and ("mask" in self.name or any(array.dtype == bool for array in arrays))

    @property
    def is_flag(self) -> bool:
        return not isinstance(self.theirs, np.ndarray) and not isinstance(self.mine, np.ndarray)


@dataclass(frozen=True)
class Apart:
    """Where the arguments come apart.

    Attributes:
        item: the call that gets others; on torch's own it gives torch's result.
        around: the call whose forward passes them.
        before: the last call inside `around` that ended before it, None if it is the first.
        differences: of the arguments.
        start: how many of the measured calls ended before it.
    """

    item: Measured
    around: Measured
    before: Measured | None
    differences: tuple[Difference, ...]
    start: int

    @property
    def by_mask(self) -> bool:
        """Whether masks or flags differ and all else that goes in agrees."""
        return all(difference.is_mask or difference.is_flag for difference in self.differences)


def arguments_apart(sides: Sides, measured: Sequence[Measured]) -> Apart | None:
    """The first such call in the order in which torch began them, the outermost first; None if an earlier one fails."""
    places = {id(call): place for place, call in enumerate(sides.calls)}
    own = {places[id(item.call)]: item for item in measured if id(item.call) in places}
    ours = {(call.path, call.call): call for call in sides.whole}
    for place, item in sorted(own.items(), key=lambda pair: (pair[1].call.begin, -pair[0])):
        begin = item.call.begin
        ended = [other for other in own if other < begin]
        if any(not own[other].layer.ok for other in ended):
            return None
        mine = ours.get((item.layer.flax_path, item.layer.call))
        if mine is None or not item.parts_in_whole or item.parts_locally or item.layer.local_error is None:
            continue
        around = next((own[other] for other in own if other > place and own[other].call.begin <= begin), None)
        differences = tuple(_differences(item, mine, sides.modules[mine.path]))
        if around is not None and differences:
            inside = [
                own[other] for other in ended if other >= around.call.begin and own[other].layer.error is not None
            ]
            start = next(i for i, other in enumerate(measured) if places.get(id(other.call), -1) >= begin)
            return Apart(item, around, inside[-1] if inside else None, differences, start)
    return None


def _differences(item: Measured, mine: FlaxCall, module: Any) -> list[Difference]:
    """Arrays that differ; if none does, flags that do."""
    theirs, ours = given(item.call), _passed(mine, module, list(given(item.call)))
    found = [Difference(name, value, ours[name]) for name, value in theirs.items() if name in ours]
    found = [difference for difference in found if not _agree(difference)]
    return [difference for difference in found if not difference.is_flag] or found


def _passed(mine: FlaxCall, module: Any, names: list[str]) -> dict[str, Any]:
    """Flax's arguments by torch's names; under another name, the one at the same place."""
    if mine.given is None:
        return {}
    try:
        bound = inspect.signature(module.__call__).bind(*mine.given[0], **mine.given[1])
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    passed = {name: _plain(value) for name, value in bound.arguments.items()}
    placed = dict(zip(names, passed, strict=False))
    by_place = {name: passed[own] for name, own in placed.items() if name not in passed and own not in names}
    return {name: value for name, value in {**passed, **by_place}.items() if _comparable(value)}


def _plain(value: Any) -> Any:
    return np.asarray(value) if hasattr(value, "shape") and hasattr(value, "dtype") else value


def _comparable(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, np.ndarray))


def _agree(difference: Difference) -> bool:
    theirs, mine = difference.theirs, difference.mine
    if difference.is_flag:
        return not _comparable(theirs) or theirs is None or mine is None or theirs == mine
    if not isinstance(theirs, np.ndarray) or not isinstance(mine, np.ndarray):
        return not (theirs is None or mine is None)
    if difference.is_mask:
        added, ours = _masks(theirs, mine)
        return _fit(theirs, mine) and bool((added == ours).all())
    return same_values(theirs, mine)


def same_values(theirs: np.ndarray, mine: np.ndarray) -> bool:
    """Of floating arrays up to rounding."""
    return same([mine], [theirs]) or bool(np.array_equal(theirs, mine))


def _fit(theirs: np.ndarray, mine: np.ndarray) -> bool:
    try:
        np.broadcast_shapes(theirs.shape, mine.shape)
    except ValueError:
        return False
    return True


def _masks(*masks: np.ndarray) -> Iterator[np.ndarray]:
    """What is added to the logits, if booleans mean what torch's do."""
    for mask in masks:
        added = additive(mask)
        yield np.where(added <= _BLOCKING, -np.inf, added).astype(np.float32)
