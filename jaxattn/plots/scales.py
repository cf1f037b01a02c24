"""Logarithmic axes that can be read where they span little, and labels that fit."""

from collections.abc import Callable

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter

#: An axis that spans less than this factor has labels between its powers of ten too, at 2 and 5.
FEW_DECADES = 100


def label_logarithmic(axis: Axis, text: Callable[[float], str]) -> None:
    """Labels by `text`, at powers of ten, and at 2 and 5 times those where the axis spans less than two decades."""

    def minor(value: float, _: int | None) -> str:
        low, high = axis.get_view_interval()
        return text(value) if high < FEW_DECADES * low and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(FuncFormatter(minor))


def shortened(label: str, most: int) -> str:
    """The label, cut to so many characters."""
    return label if len(label) <= most else label[: most - 1] + "…"
