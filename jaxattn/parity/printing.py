"""What all reports of this package can do: text, JSON, an error."""

import io
import math
from typing import Any

import numpy as np
from rich.console import Console


class Report:
    """What Rich can render, with a verdict."""

    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything passes."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        raise NotImplementedError

    @property
    def failures(self) -> list[str]:
        """What fails, one sentence each."""
        raise NotImplementedError

    def assert_ok(self) -> None:
        """Nothing if everything passes.

        Raises:
            AssertionError: the headline, and everything that fails.
        """
        if not self.ok:
            failures = [f"  - {failure}" for failure in self.failures]
            raise AssertionError("\n".join([self.headline, *failures, *(f"  note: {note}" for note in self.notes)]))

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=150, color_system=None)
        with console.capture() as captured:
            console.print(self)
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
