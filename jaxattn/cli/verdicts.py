"""What parity found, for the terminal: sentences, and a table for narrow ones."""

import dataclasses

from rich.table import Table
from rich.text import Text

from ..parity.printing import number
from ..parity.report import ParityReport
from ..parity.trace_report import TraceReport
from ..parity.train_report import TrainReport


def trace_sentence(trace: TraceReport) -> str:
    """How many modules agree, or the first that doesn't and the cause."""
    if trace.first is None and not trace.ok:
        return trace.headline.partition(": ")[2]
    if not trace.ok:
        return f"first divergence at {trace.first or 'the whole module'}: {trace.cause or 'cause unknown'}"
    measured = [layer.local_error for layer in trace.layers if layer.local_error is not None]
    alone = f"; on PyTorch's own inputs each differs by {max(measured):.1e} at most" if any(measured) else ""
    partnerless = f"; {len(trace.unpaired)} without a partner: {_listed(trace.unpaired)}" if trace.unpaired else ""
    partly = f"; {trace.partly}" if trace.partly else ""
    compared = {layer.torch_path for layer in trace.layers if layer.coverage is None or not layer.coverage.nothing}
    every = len({layer.torch_path for layer in trace.layers})
    count = f"all {every}" if len(compared) == every else f"{len(compared)} of {every}"
    return f"{count} modules agree in float64{alone}{partly}{partnerless}"


def training_sentence(training: TrainReport) -> str:
    """How many steps agree, or the first that doesn't and what parts there."""
    if training.problems or training.first is not None:
        where = "" if training.first is None else f" at step {training.first}"
        return f"with {training.optimizer} they part{where}: {'; '.join(training.problems[:2])}"
    if not training.proven:
        return f"nothing is proven: {training.partly}"
    worst = max(step.parameter_error for step in training.steps if step.proves)
    count, partly = training.proven, f"; {training.partly}" if training.partly else ""
    steps = f"{count} step{'s' * (count > 1)} of {training.optimizer}"
    return f"{steps} agree in float64, parameters within {worst:.1e}{partly}"


def verdict_line(title: str, sentence: str, *, ok: bool) -> Text:
    """For the terminal."""
    return Text.assemble((f"{title}: ", "bold"), (sentence, "green" if ok else "bold red"))


def narrow_table(report: ParityReport) -> Table:
    """The rows of a report in 80 columns: each error with what is allowed, and which rows fail."""
    low = [report.dtype] if report.dtype != "float64" else []
    table = Table(title=Text(report.headline), title_justify="left")
    table.add_column("what", overflow="fold")
    for name in ("float64", *low):
        table.add_column(f"{name}, allowed", justify="right", overflow="fold")
    table.add_column("")
    for row in report.rows:
        pairs = [(row.error_float64, row.allowed_float64), (row.error, row.allowed)][: 1 + len(low)]
        numbers = [f"{number(error)}  {number(allowed)}".strip() for error, allowed in pairs]
        style = "green" if row.ok else "bold red"
        words = row.verdict if row.ok and row.word != "ok" else row.word
        table.add_row(Text(row.what), *numbers, Text(words, style=style))
    return table


def without_maps(report: ParityReport) -> ParityReport:
    """For JSON: attention maps grow with the square of the length, and are on the page."""
    return dataclasses.replace(report, trace=report.trace and dataclasses.replace(report.trace, maps=()))


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")
