"""What a comparison found: rows, a verdict, a table, JSON, a page."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .._checks import shape_text
from .coverage import Coverage, parts_sentence
from .printing import Report, jsonable, number
from .trace_report import TraceReport
from .train_report import TrainReport

#: At most so many failed gradients are named in an error.
WORST = 5


@dataclass(frozen=True)
class Row:
    """One compared thing. Errors are the largest difference from the truth, None where nothing was measured.

    Attributes:
        what: "state dict, bit for bit", an output's name, or "gradient of …".
        kind: "weights", "input", "output" or "gradient".
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
        ill_conditioned: what float64 allows is what torch's own result moves by with its inputs.
        not_finite: elements that are finite on neither side in float64, and so prove nothing.
        low_not_finite: elements that could not be measured at the low dtype.
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
    ill_conditioned: bool = False
    not_finite: int = 0
    low_not_finite: int = 0

    @property
    def ok(self) -> bool:
        """Nothing fails; whether anything was compared, `elements` and `not_finite` say."""
        return not self.problems

    @property
    def elements(self) -> int:
        """How many numbers the row is about; 0 where it is about none (the state dict, the inputs)."""
        return math.prod(self.shape) if self.kind in ("output", "gradient") else 0

    @property
    def coverage(self) -> Coverage:
        """Which part was compared; at the low dtype where that is less."""
        return Coverage(self.elements, max(self.not_finite, self.low_not_finite))

    @property
    def word(self) -> str:
        """ "ok", "ok for a part", "nothing compared" or "FAILED"."""
        if not self.ok:
            return "FAILED"
        return self.coverage.word if self.kind in ("output", "gradient") else "ok"

    @property
    def verdict(self) -> str:
        """ "ok" and for which part, or what fails."""
        words = list(self.problems) or [self.word + (", float32-limited" if self.limited else "")]
        if self.ill_conditioned:
            words.append(f"ill-conditioned: limit {number(self.allowed_float64)}, what torch moves by with one ulp")
        for where, count in (("", self.not_finite), ("at the low dtype ", self.low_not_finite - self.not_finite)):
            if count > 0:
                words.append(f"{count} of {self.elements} elements {where}are finite on neither side: not compared")
        return "; ".join(words)


@dataclass(frozen=True)
class ParityReport(Report):
    """The result of `compare`; print it, call `assert_ok`, or look at it with `save_html`.

    As long as it lives it keeps both modules and the inputs that `compare` was given, for `save_html` to trace; what
    `to_json` returns keeps nothing, and so does a pickle or a copy, whose page shows a trace only where there is one.

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
        trace: the same call layer by layer, if it was traced.
        training: steps of both sides, if they were trained.
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
    trace: TraceReport | None = None
    training: TrainReport | None = None
    #: Traces the compared call; `save_html` runs it where there is no `trace`.
    _trace: Callable[[], TraceReport] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trace": None}

    @property
    def ok(self) -> bool:
        """All that is present passes: rows, trace, training."""
        return all(part.ok for part in (*self.rows, *self._parts))

    @property
    def headline(self) -> str:
        count = len(self.failed)
        verdict = f"FAILED in {count} of {len(self.rows)} rows" if count else "ok" if self.ok else "FAILED"
        partly = f"; {self.partly}" if self.partly else ""
        return f"Parity of torch {self.torch_module} and Flax {self.flax_module} ({self.dtype}): {verdict}{partly}"

    @property
    def partly(self) -> str:
        """Which part of the elements the verdict is about; "" if it is about all."""
        return parts_sentence([row.coverage for row in self.rows if row.kind in ("output", "gradient")], "tensors")

    @property
    def _parts(self) -> list[TraceReport | TrainReport]:
        return [part for part in (self.trace, self.training) if part is not None]

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

    @property
    def failures(self) -> list[str]:
        """Failed rows, of the gradients the worst; where a trace parts and why, which step of a training parts."""
        gradients = sorted((row for row in self.failed if row.kind == "gradient"), key=_excess, reverse=True)
        shown = [row for row in self.failed if row.kind != "gradient"] + gradients[:WORST]
        found = [f"{row.what} {shape_text(row.shape)}: {row.verdict}" for row in shown]
        if gradients[WORST:]:
            found.append(f"… {len(gradients) - WORST} more")
        if self.trace is None and any(row.kind in ("output", "gradient") for row in shown):
            found.append("jaxattn.parity.trace(torch_module, flax_module, …) tells where it starts")
        return found + [part.headline for part in self._parts if not part.ok]

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; infinities and NaN as strings."""
        found = asdict(replace(self, trace=None, training=None, _trace=None))
        del found["_trace"]
        rows = [{**asdict(row), "ok": row.ok, "verdict": row.verdict, "elements": row.elements} for row in self.rows]
        parts = {"trace": self.trace, "training": self.training}
        parts = {name: part and part.to_json() for name, part in parts.items()}
        return jsonable({**found, "ok": self.ok, "partly": self.partly, "rows": rows, **parts})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write everything as one page that needs no network, for people to look at; an older page is replaced.

        Without a `trace`, what `compare` compared is traced now, on the modules as they are now.

        Args:
            path: the file; its directory must exist.

        Raises:
            FileExistsError: `path` is a directory.
            FileNotFoundError: its directory does not exist.
        """
        # Jinja2 and matplotlib are loaded by those who want a page.
        from .page import write_page

        write_page(self._traced(), path)

    def _traced(self) -> "ParityReport":
        if self.trace is not None or self._trace is None:
            return self
        try:
            trace = self._trace()
        except (NotImplementedError, TypeError, ValueError) as error:
            return replace(self, notes=(*self.notes, f"the layers could not be traced: {error}"))
        note = "the layers were traced when this page was written, on the modules as they were then"
        return replace(self, trace=trace, notes=(*self.notes, note))

    def __rich__(self) -> Group:
        parts: list[Any] = [self._table(self.headline, [row for row in self.rows if not row.zero])]
        zeros = [row for row in self.rows if row.zero]
        if zeros:
            parts.append(self._table("Gradients that are zero up to rounding", zeros))
        return Group(*parts, *(Text(f"note: {note}") for note in self.notes), *self._parts)

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
            cells = [Text(row.what), shape_text(row.shape), *map(number, numbers)]
            table.add_row(*cells, Text(row.verdict, style=style))
        return table


def _excess(row: Row) -> float:
    """How many times what is allowed the error is; infinite where there is no number."""
    pairs = ((row.error_float64, row.allowed_float64), (row.error, row.allowed))
    ratios = [error / allowed if allowed else math.inf for error, allowed in pairs if error is not None]
    return max((math.inf if math.isnan(ratio) else ratio for ratio in ratios), default=math.inf)
