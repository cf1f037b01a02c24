"""What a comparison found: rows, a verdict, a table, JSON."""

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .._checks import shape_text


@dataclass(frozen=True)
class Row:
    """One compared thing. Errors are the largest difference from the truth, None where nothing was measured.

    Attributes:
        what: "state dict, bit for bit", an output's name, or "gradient of …".
        kind: "weights", "output" or "gradient".
        shape: of the tensor; for the state dict the number of tensors.
        error_float64: between both sides, computed in float64.
        allowed_float64: what the algorithm criterion allows.
        error: ours at the low dtype.
        torch_error: torch's at the low dtype.
        allowed: what the rounding criterion allows.
        rms: ours at the low dtype, root mean square.
        torch_rms: torch's.
        allowed_rms: what the rounding criterion allows.
        problems: what fails, one sentence each; empty if all is well.
        zero: a gradient that is zero up to rounding (that of a key bias), listed apart.
        limited: judged as float32, because torch's float64 run is none.
    """

    what: str
    kind: str
    shape: tuple[int, ...]
    error_float64: float | None = None
    allowed_float64: float | None = None
    error: float | None = None
    torch_error: float | None = None
    allowed: float | None = None
    rms: float | None = None
    torch_rms: float | None = None
    allowed_rms: float | None = None
    problems: tuple[str, ...] = ()
    zero: bool = False
    limited: bool = False

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        """ "ok", or what fails."""
        return "; ".join(self.problems) or ("ok, float32-limited" if self.limited else "ok")


@dataclass(frozen=True)
class ParityReport:
    """The result of `compare`; print it, or call `assert_ok`.

    Attributes:
        torch_module: class name.
        flax_module: class name.
        dtype: the low dtype: that of the parameters.
        seed: of the cotangents.
        rows: the state dict first, then outputs, then gradients.
        notes: what the numbers alone don't say.
        device: where each side ran.
        versions: of everything that computed.
        conditions: settings of the runs.
    """

    torch_module: str
    flax_module: str
    dtype: str
    seed: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    device: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def row(self, what: str) -> Row:
        """The row of that name.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.what == what:
                return row
        raise KeyError(f"No row {what!r}; there are {', '.join(repr(row.what) for row in self.rows)}.")

    def assert_ok(self) -> None:
        """Nothing if every row passes.

        Raises:
            AssertionError: lists every failed row.
        """
        if self.ok:
            return
        lines = [self._headline(), *(f"  - {row.what} {shape_text(row.shape)}: {row.verdict}" for row in self.failed)]
        raise AssertionError("\n".join([*lines, *(f"  note: {note}" for note in self.notes)]))

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; infinities and NaN as strings."""
        rows = [{**asdict(row), "ok": row.ok, "verdict": row.verdict} for row in self.rows]
        return _jsonable({**asdict(self), "ok": self.ok, "rows": rows})

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=150, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())

    def __rich__(self) -> Group:
        parts: list[Any] = [self._table(self._headline(), [row for row in self.rows if not row.zero])]
        zeros = [row for row in self.rows if row.zero]
        if zeros:
            parts.append(self._table("Gradients that are zero up to rounding", zeros))
        return Group(*parts, *(Text(f"note: {note}") for note in self.notes))

    def _headline(self) -> str:
        count = len(self.failed)
        verdict = "ok" if self.ok else f"FAILED in {count} of {len(self.rows)} rows"
        return f"Parity of torch {self.torch_module} and Flax {self.flax_module} ({self.dtype}): {verdict}"

    def _table(self, title: str, rows: Sequence[Row]) -> Table:
        table = Table(title=Text(title), title_justify="left")
        table.add_column("what", overflow="fold")
        table.add_column("shape", no_wrap=True)
        low = [f"Flax {self.dtype}", f"torch {self.dtype}", "allowed"] if self.dtype != "float64" else []
        for name in ("float64", "allowed", *low):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for row in rows:
            numbers = [row.error_float64, row.allowed_float64, row.error, row.torch_error, row.allowed][: 2 + len(low)]
            style = "green" if row.ok else "bold red"
            cells = [Text(row.what), shape_text(row.shape), *(_number(number) for number in numbers)]
            table.add_row(*cells, Text(row.verdict, style=style))
        return table


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
