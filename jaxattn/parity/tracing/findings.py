"""Findings of a trace, and when two results are the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import _checks
from ..criterion import deviation, output_scale

#: A hypothesis that is true gives Flax's result up to the rounding of float64.
HYPOTHESIS_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Cause:
    """The name of a cause ("mask polarity") and what was found, one sentence."""

    name: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


@dataclass(frozen=True)
class Finding:
    """A cause that was found by reading both modules, at a torch path."""

    kind: str
    path: str
    cause: Cause


def same(values: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether two results are equal up to rounding, the first of their arrays if they have another number of them."""
    if len(values) != len(others):
        values, others = values[:1], others[:1]
    return bool(values) and all(_close(a, b) for a, b in zip(values, others, strict=True))


def explains(ours: Sequence[np.ndarray], changed: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> bool:
    """Whether a hypothesis gives Flax's result and not torch's, too: what changes nothing is no cause."""
    return same(ours, changed) and not same(truth, changed)


def telling(value: float, other: float, digits: int = 4) -> str:
    """The value in as many digits as tell it from the other one: two values that read the same explain nothing."""
    for count in range(digits, 18):
        text = f"{value:.{count}g}"
        if float(text) != float(f"{other:.{count}g}"):
            return text
    return repr(value)


def _close(values: np.ndarray, other: np.ndarray) -> bool:
    if values.shape != other.shape or not values.size:
        return False
    apart = deviation(values, other)
    return apart.problem is None and apart.largest <= HYPOTHESIS_TOLERANCE * output_scale(other)


def either(causes: Sequence[Cause]) -> Cause | None:
    """The only one; where several fit equally all of them, since none is more likely."""
    distinct = list({(cause.name, cause.sentence): cause for cause in causes}.values())
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    names = list(dict.fromkeys(cause.name for cause in distinct))
    return Cause(" or ".join(names), "; or ".join(cause.sentence for cause in distinct))


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a`, `b`, … with how many there are."""
    return _checks.listed([f"`{name}`" for name in names], most)
