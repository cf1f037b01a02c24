"""What a forward of one's own does otherwise before it calls a part: read off that part's arguments."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..._checks import shape_text
from ..._tensors import to_numpy
from ..arguments import is_floating
from .arguments_apart import Apart, Difference, same_values
from .findings import Cause, either, same, telling
from .torch_calls import TorchCall

Known = tuple[str, np.ndarray]


def mask_cause(apart: Apart) -> Cause:
    """Which mask, or which flag, the part gets otherwise."""
    path, difference = _part(apart), apart.differences[0]
    name, theirs, mine = difference.name, difference.theirs, difference.mine
    if difference.is_flag:
        return Cause("other argument", f"{path} got `{name}`={theirs!r} in torch and {mine!r} in Flax")
    if not isinstance(mine, np.ndarray):
        return Cause("mask ignored", f"{path} got `{name}` {shape_text(theirs.shape)} in torch and none in Flax")
    if not isinstance(theirs, np.ndarray):
        return Cause("mask added", f"{path} got `{name}` {shape_text(mine.shape)} in Flax and none in torch")
    kind, sentence = _mask_difference(theirs, mine)
    return Cause(kind, f"{path} got `{name}` {sentence}")


def _mask_difference(theirs: np.ndarray, mine: np.ndarray) -> tuple[str, str]:
    if theirs.dtype == bool and mine.dtype != bool and np.isin(mine, (0, 1)).all():
        return "mask dtype", f"of booleans in torch and of 0 and 1 as {mine.dtype.name} in Flax, which are added"
    blocked, ours = _blocked(theirs), _blocked(mine)
    if blocked.shape == ours.shape:
        if np.array_equal(ours, ~blocked):
            return "mask polarity", f"{shape_text(ours.shape)}, which in Flax is the inverse of torch's"
        if blocked.ndim > 1 and blocked.shape[-1] == blocked.shape[-2]:
            if np.array_equal(ours, blocked.swapaxes(-1, -2)):
                return "mask axis", f"{shape_text(ours.shape)}, which in Flax is torch's with its last axes exchanged"
            if np.array_equal(ours, ~blocked.swapaxes(-1, -2)):
                return "mask polarity", f"{shape_text(ours.shape)}, the other triangle in Flax than in torch"
        for axis in range(-1, -min(blocked.ndim, 2) - 1, -1):
            for step in (1, -1):
                if _moved(ours, blocked, axis, step):
                    return "mask alignment", f"{shape_text(ours.shape)}, moved by {step:+d} along axis {axis} in Flax"
        apart = int((blocked != ours).sum())
        values = f"{apart} of {blocked.size} places are blocked on one side only" if apart else "its values differ"
        return "other mask", f"{shape_text(ours.shape)}, of which {values}"
    return "other mask", f"{shape_text(theirs.shape)} in torch and {shape_text(mine.shape)} in Flax"


def _blocked(mask: np.ndarray) -> np.ndarray:
    return mask <= -1e4 if is_floating(mask) else mask != 0


def _moved(ours: np.ndarray, theirs: np.ndarray, axis: int, step: int) -> bool:
    ours, theirs = np.moveaxis(ours, axis, 0), np.moveaxis(theirs, axis, 0)
    late, early = (ours, theirs) if step > 0 else (theirs, ours)
    return len(ours) > 2 and bool(np.array_equal(late[1:], early[:-1]))


def forward_cause(apart: Apart, calls: Sequence[TorchCall]) -> Cause:
    """What the forward around it computes otherwise, as far as the part's arguments show.

    Args:
        apart: where they come apart.
        calls: torch's, all of the run.
    """
    difference = next(item for item in apart.differences if not (item.is_mask or item.is_flag))
    theirs, mine, path = difference.theirs, difference.mine, _part(apart)
    if not isinstance(theirs, np.ndarray) or not isinstance(mine, np.ndarray):
        side, other = ("torch", "Flax") if mine is None else ("Flax", "torch")
        return Cause("other argument", f"{path} got `{difference.name}` in {side} and none in {other}")
    if theirs.shape == mine.shape:
        with np.errstate(all="ignore"):
            found = _explanations(theirs, mine, list(_known(apart, calls, theirs)), list(_tables(apart)))
            cause = either([Cause(name, sentence) for name, sentence in found])
        if cause is not None:
            return Cause(cause.name, f"`{difference.name}` of {path} {cause.sentence}; {between(apart)}")
    return Cause("another input", f"{between(apart)}: {_apart(difference)}")


def between(apart: Apart) -> str:
    """Where in the forward to look."""
    path = _part(apart)
    if apart.before is None:
        return f"{path}, its first part, gets something else in the whole run already"
    agrees = apart.before.layer.name
    return f"look between `{agrees}`, which agrees in the whole run, and {path}, which gets something else"


def _part(apart: Apart) -> str:
    return f"`{apart.item.layer.name}`"


def _apart(difference: Difference) -> str:
    theirs, mine = difference.theirs, difference.mine
    if theirs.shape != mine.shape:
        return f"`{difference.name}` is {shape_text(theirs.shape)} in torch and {shape_text(mine.shape)} in Flax"
    return f"`{difference.name}` differs by up to {np.max(np.abs(mine.astype(float) - theirs.astype(float))):.2g}"


def _known(apart: Apart, calls: Sequence[TorchCall], like: np.ndarray) -> Iterator[Known]:
    """Torch's tensors that the forward around the part has at hand, of the shape of what goes into it."""
    around = apart.around.call
    for name, array in zip(around.arguments.names, around.arguments.arrays, strict=True):
        if array.shape == like.shape:
            yield f"its input `{name}`", array
    for call in calls[around.begin : apart.item.call.begin]:
        if call.outputs.arrays and call.outputs.shapes[0] == like.shape:
            yield f"what `{call.path}` returns", call.outputs.arrays[0]
    for name, array in _tables(apart):
        if array.ndim > 1 and like.ndim >= array.ndim and array.shape[-2] > like.shape[-2]:
            array = array[..., : like.shape[-2], :]
        try:
            yield name, np.broadcast_to(array, like.shape)
        except ValueError:
            continue


def _tables(apart: Apart) -> Iterator[Known]:
    """Parameters and buffers of the forward's own."""
    module = apart.around.call.module
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        yield f"`{name}`", to_numpy(tensor.detach())


def _explanations(
    theirs: np.ndarray, mine: np.ndarray, known: list[Known], tables: list[Known]
) -> Iterator[tuple[str, str]]:
    """(cause, sentence) of every explanation that fits exactly."""
    if not is_floating(theirs):
        step = np.unique(mine.astype(int) - theirs.astype(int))
        if step.size == 1:
            yield "position offset", f"is torch's {step[0]:+d} in Flax"
        return
    if factor := _factor(mine, theirs):
        yield "scale", f"is {telling(factor, 1.0)} times torch's in Flax"
    yield from (("other input", f"is {words} in Flax") for words, array in known if same_values(array, mine))
    for words, array in known:
        factor = _factor(theirs - mine, array)
        if factor and abs(factor - 1) < 1e-9:
            kind = "residual missing" if words.startswith(("its input", "what")) else "parameter not used"
            yield kind, f"is torch's without {words}, which torch adds"
        elif factor and abs(factor + 1) < 1e-9:
            yield "residual added", f"is torch's with {words} added"
        elif factor:
            yield "scale", f"holds {words} {abs(factor):.4g} times {'less' if factor > 0 else 'more'} than torch's"
    yield from (("position offset", sentence) for sentence in _other_rows(theirs, mine, tables))
    for base in (0.0, *(array for _, array in known)):
        for axis in range(min(theirs.ndim, 3) - 1):
            for step in (1, -1):
                if _is_moved(mine - base, theirs - base, axis, step):
                    yield "position offset", f"holds at position t in Flax what torch has at t {step:+d}"


def _other_rows(theirs: np.ndarray, mine: np.ndarray, tables: list[Known]) -> Iterator[str]:
    """Later rows of a table of positions, added where torch adds the first ones."""
    length = theirs.shape[-2] if theirs.ndim > 1 else 0
    for name, table in tables:
        for start in range(1, min(table.shape[-2] - length, 2) + 1) if table.ndim > 1 and length else ():
            step = table[..., start : start + length, :] - table[..., :length, :]
            if step.shape[-1] == theirs.shape[-1] and step.ndim <= theirs.ndim:
                if same([mine - theirs], [np.broadcast_to(step, theirs.shape)]):
                    yield f"has the rows of {name} from {start} on added in Flax, from 0 on in torch"


def _factor(values: np.ndarray, array: np.ndarray) -> float | None:
    """c where values = c · array."""
    total = float((array * array).sum())
    factor = float((values * array).sum()) / total if total else 0.0
    return factor if factor and np.isfinite(factor) and same([values], [factor * array]) else None


def _is_moved(mine: np.ndarray, theirs: np.ndarray, axis: int, step: int) -> bool:
    mine, theirs = np.moveaxis(mine, axis, 0), np.moveaxis(theirs, axis, 0)
    late, early = (mine, theirs) if step > 0 else (theirs, mine)
    return len(mine) > 2 and same([late[:-1]], [early[1:]])
