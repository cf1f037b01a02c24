"""From measured points to a verdict: geometric means, the worst point, and the targets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxattn.conditions import duration

from .systems import JAX_NN, TORCH


@dataclass(frozen=True)
class Verdict:
    """One target and what was measured.

    Attributes:
        what: the measured quantity, in words.
        value: NaN where it could not be measured.
        limit: the target.
        at_least: whether the value must be at least the limit, or at most.
        unit: "×", "s", "MiB" or "".
    """

    what: str
    value: float
    limit: float
    at_least: bool = True
    unit: str = "×"

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        wanted = f"{'≥' if self.at_least else '≤'} {self._text(self.limit)}"
        value = None if math.isnan(self.value) else self.value
        measured = {"value": value, "measured": self._text(self.value), "wanted": wanted}
        return {"what": self.what, **measured, "met": self.met}

    def _text(self, value: float) -> str:
        if math.isnan(value):
            return "not measured"
        if self.unit == "s":
            return duration(value)
        return f"{value:.3g}{self.unit}" if self.unit in ("×", "") else f"{value:.0f} {self.unit}"


@dataclass(frozen=True)
class SpeedTarget:
    """How many times as fast as a peer: the geometric mean over the points, and the least at any of them."""

    peer: str
    mean: float
    least: float | None


TARGETS: dict[str, list[SpeedTarget]] = {
    "op": [SpeedTarget(TORCH, 1.0, 0.75), SpeedTarget(JAX_NN, 3.0, 1.2)],
    "op_grad": [SpeedTarget(TORCH, 1.1, 0.85), SpeedTarget(JAX_NN, 2.5, None)],
}
COMPILE_S = 2.0


def geometric_mean(values: Iterable[float]) -> float:
    """NaN for no values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def summary(results: Sequence[Mapping[str, Any]], peer: str) -> dict[str, Any]:
    """Over the points where the peer was measured: geometric mean of the ratios of medians, and the lowest one."""
    ratios = {
        result["label"]: result["ratio_over"][peer]["median"] for result in results if peer in result["ratio_over"]
    }
    lowest = min(ratios, key=ratios.__getitem__, default=None)
    least = {"least": math.nan if lowest is None else ratios[lowest], "least_at": lowest}
    return {"points": len(ratios), "of": len(results), "geometric_mean": geometric_mean(ratios.values()), **least}


def speed_verdicts(results: Sequence[Mapping[str, Any]], targets: Sequence[SpeedTarget], ours: str) -> list[Verdict]:
    """A peer that some point lacks meets no target: its mean would be over other points."""
    verdicts = []
    for target in targets:
        over = summary(results, target.peer)
        complete = over["points"] == over["of"]
        mean, least = (over["geometric_mean"], over["least"]) if complete else (math.nan, math.nan)
        verdicts.append(Verdict(f"over {target.peer}, geometric mean", mean, target.mean))
        if target.least is not None:
            where = over["least_at"] if complete else "a point lacks it"
            verdicts.append(Verdict(f"over {target.peer}, least ({where})", least, target.least))
    slowest = max(results, key=lambda result: result["compile_s"][ours])
    seconds = slowest["compile_s"][ours]
    return [*verdicts, Verdict(f"compilation, longest ({slowest['label']})", seconds, COMPILE_S, False, "s")]


def print_verdicts(verdicts: Sequence[Verdict]) -> bool:
    """Whether all targets are met, after a line for each."""
    for verdict in verdicts:
        stated = verdict.to_json()
        print(f"{'met' if verdict.met else 'MISSED'}: {verdict.what}: {stated['measured']} (target {stated['wanted']})")
    return all(verdict.met for verdict in verdicts)
