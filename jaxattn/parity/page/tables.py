"""Layers and compared tensors as lines of tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..._checks import shape_text
from ..report import ParityReport, Row
from ..trace_report import Layer, TraceReport
from .scale import Bar, LogScale, bar

#: A table of more lines is folded while all is well.
LONG = 40
TITLES = {"weights": "Weights", "input": "Inputs", "output": "Outputs", "gradient": "Gradients"}
ZEROS = "Gradients that are zero up to rounding"
#: Exponents of the shortest scale of rounding errors.
LOW_PRECISION = (-9, 1)
#: Classes of torch's own that say nothing to a reader.
ALIASES = {"NonDynamicallyQuantizableLinear": "Linear"}
#: Rows of these kinds count things instead of giving a shape.
COUNTED = {"weights": "tensors", "input": "arguments"}


@dataclass(frozen=True)
class LayerLine:
    """One call of one submodule; `first` where both sides part first."""

    name: str
    kinds: str
    shape: str
    local: Bar
    whole: Bar
    state: str
    verdict: str
    first: bool


@dataclass(frozen=True)
class LayerTable:
    scale: LogScale
    lines: list[LayerLine]

    @property
    def has_first(self) -> bool:
        return any(line.first for line in self.lines)

    @property
    def open(self) -> bool:
        """Short, or not all is well."""
        return len(self.lines) <= LONG or any(line.state != "ok" for line in self.lines)


@dataclass(frozen=True)
class RowLine:
    what: str
    shape: str
    exact: Bar
    low: Bar
    state: str
    verdict: str


@dataclass(frozen=True)
class RowTable:
    """Lines by kind, on one scale for float64 and one for the low dtype."""

    exact: LogScale
    low: LogScale
    groups: dict[str, list[RowLine]]

    @property
    def open(self) -> bool:
        """Short, or not all is well."""
        lines = [line for group in self.groups.values() for line in group]
        return len(lines) <= LONG or any(line.state != "ok" for line in lines)


def layer_table(trace: TraceReport) -> LayerTable:
    """Layers in the order in which torch finished them, all on one scale."""
    numbers = [(layer.local_error, layer.local_allowed, layer.error, layer.allowed) for layer in trace.layers]
    scale = LogScale.of(number for of_layer in numbers for number in of_layer)
    first = _first(trace)
    return LayerTable(scale, [_layer_line(layer, scale, layer is first) for layer in trace.layers])


def _first(trace: TraceReport) -> Layer | None:
    """The call that is meant by the path of the first divergence: the first that fails."""
    calls = [layer for layer in trace.layers if layer.torch_path == trace.first]
    return next((layer for layer in calls if not layer.ok), calls[0] if calls else None)


def _layer_line(layer: Layer, scale: LogScale, first: bool) -> LayerLine:
    torch_kind = ALIASES.get(layer.torch_kind, layer.torch_kind)
    local = bar(scale, layer.local_error, layer.local_allowed)
    inherited = local.state == "ok" and not first
    whole = bar(scale, layer.error, layer.allowed, bad_state="inherited" if inherited else "bad")
    state = "ok" if layer.ok and whole.state != "inherited" else "inherited" if inherited else "bad"
    return LayerLine(
        layer.name,
        torch_kind if torch_kind == layer.flax_kind else f"{torch_kind} → {layer.flax_kind}",
        shape_text(layer.shape),
        local,
        whole,
        state,
        layer.verdict if layer.problems or state == "ok" else "gets another input",
        first,
    )


def row_table(report: ParityReport) -> RowTable:
    """What `compare` measured, by kind; gradients that are zero up to rounding apart."""
    exact = LogScale.of(number for row in report.rows for number in (row.error_float64, row.allowed_float64))
    rounding = [number for row in report.rows for number in (row.error, row.torch_error, row.allowed)]
    low = LogScale.of(rounding, LOW_PRECISION)
    groups: dict[str, list[Row]] = {}
    for row in sorted(report.rows, key=lambda row: row.zero):
        groups.setdefault(ZEROS if row.zero else TITLES.get(row.kind, row.kind), []).append(row)
    return RowTable(exact, low, {title: _row_lines(rows, exact, low) for title, rows in groups.items()})


def _row_lines(rows: Sequence[Row], exact: LogScale, low: LogScale) -> list[RowLine]:
    return [
        RowLine(
            row.what.removeprefix("gradient of "),
            f"{row.shape[0]} {COUNTED[row.kind]}" if row.kind in COUNTED else shape_text(row.shape),
            bar(exact, row.error_float64, row.allowed_float64),
            bar(low, row.error, row.allowed, row.torch_error),
            "ok" if row.ok else "bad",
            row.verdict,
        )
        for row in rows
    ]
