"""Errors on one logarithmic scale, as shares of a width."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Exponents of the shortest scale: float64's rounding is on it, and so is an error of 1.
NARROWEST = (-17, 1)
#: Nothing further out gets a place of its own.
LOWEST, HIGHEST = -40, 12
MOST_TICKS = 5
#: In percent: a bar that is not zero can be seen.
LEAST = 1.0


@dataclass(frozen=True)
class Tick:
    """A power of ten, `at` percent of the width."""

    at: float
    text: str


@dataclass(frozen=True)
class LogScale:
    """From 10^low to 10^high."""

    low: int
    high: int

    @classmethod
    def of(cls, values: Iterable[float | None], narrowest: tuple[int, int] = NARROWEST) -> "LogScale":
        """Holds every finite value above zero."""
        logarithms = [math.log10(value) for value in values if value and 0 < value < math.inf]
        low = min([narrowest[0], *(math.floor(value) for value in logarithms)])
        high = max([narrowest[1], *(math.ceil(value) for value in logarithms)])
        return cls(max(low, LOWEST), min(high, HIGHEST))

    def share(self, value: float) -> float:
        """Percent of the width: 0 for zero, 100 for what is not finite."""
        if value == 0:
            return 0.0
        if not math.isfinite(value):
            return 100.0
        share = 100 * (math.log10(value) - self.low) / (self.high - self.low)
        return round(min(max(share, LEAST), 100.0), 2)

    @property
    def ticks(self) -> list[Tick]:
        """At most five, none at the very ends, where a label would stick out."""
        inner = range(self.low + 1, self.high)
        step = next(step for step in (1, 2, 3, 4, 5, 10, 20) if len(inner) / step <= MOST_TICKS)
        return [
            Tick(self.share(10.0**power), "1" if power == 0 else f"1e{power}") for power in inner if power % step == 0
        ]


@dataclass(frozen=True)
class Bar:
    """One error against its budget.

    Attributes:
        state: "ok", "bad", "inherited" (beyond the budget through what came before), "none" (not measured).
        text: the error.
        width: of the error, in percent.
        allowed_text: the budget.
        allowed: its place, in percent.
        other: the place of the error it is compared with (torch's), in percent.
        other_text: that error.
        equal: the error is exactly 0.
    """

    state: str
    text: str = ""
    width: float = 0.0
    allowed_text: str = ""
    allowed: float | None = None
    other: float | None = None
    other_text: str = ""
    equal: bool = False


def bar(
    scale: LogScale, error: float | None, allowed: float | None, other: float | None = None, bad_state: str = "bad"
) -> Bar:
    """The bar of one error; NaN is beyond every budget."""
    if error is None:
        return Bar("none")
    ok = allowed is None or error <= allowed
    return Bar(
        "ok" if ok else bad_state,
        short(error),
        scale.share(error),
        "" if allowed is None else short(allowed),
        None if allowed is None else scale.share(allowed),
        None if other is None else scale.share(other),
        "" if other is None else short(other),
        error == 0,
    )


def short(value: float) -> str:
    """Two digits: 2.2e-16, or 0.004 where that is as short."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")
    return f"{value:.2g}" if value == 0 or 0.001 <= abs(value) < 100 else f"{value:.1e}".replace(".0e", "e")
