"""Whether both modules hold the same weights, bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flax import nnx

from .._checks import shape_text
from .._tensors import to_numpy
from ..convert.apply import state_dict
from ..convert.build import further_names, live_tensors
from ..convert.naming import constants_of


@dataclass(frozen=True)
class WeightsCheck:
    """How many tensors were compared, what differs (one sentence each), and torch's buffers that Flax doesn't hold."""

    names: tuple[str, ...]
    problems: list[str] = field(default_factory=list)
    unshared_buffers: list[str] = field(default_factory=list)


def compare_weights(torch_module: Any, flax_module: nnx.Module) -> WeightsCheck:
    """torch's state dict against Flax's, through the rules of the Flax module.

    Raises:
        ConversionError: torch tensors that can't become arrays (meta, sparse, quantised, …).
    """
    ours = state_dict(flax_module)
    tensors = live_tensors(torch_module)
    theirs = {name: to_numpy(tensor) for name, tensor in tensors.items()}
    buffers = {name for name, _ in torch_module.named_buffers(remove_duplicate=False)}
    constants = {constant.source for constant in constants_of(flax_module)}
    missing = [name for name in theirs if name not in ours]
    other = further_names(tensors, ours)
    problems = [f"`{name}` is in torch only{_tie(name, other)}" for name in missing if name not in buffers]
    problems += [f"`{name}` is in Flax only" for name in ours if name not in theirs]
    problems += [
        f"`{name}` {difference}"
        for name in theirs
        if name in ours and (difference := _difference(theirs[name], ours[name]))
    ]
    unshared = [name for name in missing if name in buffers and name not in constants]
    return WeightsCheck(tuple(ours), problems, unshared)


def _tie(name: str, other: Mapping[str, str]) -> str:
    if name not in other:
        return ""
    return f"; in PyTorch it is `{other[name]}`: define `torch_ties()` returning {{{name!r}: {other[name]!r}}}"


def shared_names(theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> list[str]:
    """The parameters that both sides hold in one shape; the others are weight problems."""
    return [name for name, value in theirs.items() if name in ours and ours[name].shape == value.shape]


def _difference(theirs: np.ndarray, ours: np.ndarray) -> str | None:
    if theirs.shape != ours.shape:
        return f"is {shape_text(theirs.shape)} in torch, {shape_text(ours.shape)} in Flax"
    if theirs.dtype != ours.dtype:
        return f"is {theirs.dtype.name} in torch, {ours.dtype.name} in Flax"
    differing = (_bits(theirs) != _bits(ours)).any(axis=-1)
    if not differing.any():
        return None
    if theirs.ndim == 2 and theirs.shape[0] == theirs.shape[1] and np.array_equal(_bits(theirs.T), _bits(ours)):
        return "is equal transposed: one side holds (in, out) where torch holds (out, in)"
    apart = np.abs(np.subtract(theirs, ours, dtype=np.float64))
    return f"differs in {int(differing.sum())} of {differing.size} elements, by up to {np.max(apart):.2g}"


def _bits(array: np.ndarray) -> np.ndarray:
    """The bytes of each element, [number of elements, bytes of one]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.dtype.itemsize)
