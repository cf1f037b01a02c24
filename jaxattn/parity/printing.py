"""How every report of this package becomes text and JSON."""

import io
import math
from typing import Any

import numpy as np
from rich.console import Console


def as_text(report: Any) -> str:
    """A report that Rich can render, as plain text."""
    console = Console(file=io.StringIO(), width=150, color_system=None)
    with console.capture() as captured:
        console.print(report)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def number(value: float | None) -> str:
    """Two digits, "" for None."""
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"


def jsonable(value: Any) -> Any:
    """`value` in types that JSON has; infinities and NaN as strings, arrays as nested lists."""
    if isinstance(value, dict):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
