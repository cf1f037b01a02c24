"""The verdict, the first divergence and the conditions, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report import ParityReport
from ..trace_report import Evidence, TraceReport
from ..train_report import TrainReport


@dataclass(frozen=True)
class Verdict:
    ok: bool
    word: str
    sentences: list[str]


@dataclass(frozen=True)
class Divergence:
    """Where both sides part first. `name` is the kind of cause, `text` what was found; what tells most comes first."""

    path: str
    name: str
    text: str
    evidence: tuple[Evidence, ...]


def verdict(report: ParityReport) -> Verdict:
    """The report's own, and a sentence for each of its parts."""
    trace, training = report.trace, report.training
    sentences = []
    if report.rows:
        passing = sum(row.ok and row.word != "nothing compared" for row in report.rows)
        sentences.append(f"{passing} of {len(report.rows)} comparisons pass")
    if trace is not None:
        agreeing = sum(layer.ok and not (layer.coverage and layer.coverage.nothing) for layer in trace.layers)
        sentences.append(f"{agreeing} of {len(trace.layers)} layers agree")
    if training is not None and not training.problems and training.first is None:
        sentences.append(f"{training.proven} of {len(training.steps)} training steps agree")
    elif training is not None:
        sentences.append("training parts" + ("" if training.first is None else f" at step {training.first}"))
    parts = [(name, part.partly) for name, part in (("outputs and gradients", report), *_named(report)) if part.partly]
    sentences += [f"{name}: {partly}" for name, partly in parts]
    holds = "Parity holds for a part" if parts else "Parity holds"
    return Verdict(report.ok, holds if report.ok else "Parity fails", sentences)


def _named(report: ParityReport) -> list[tuple[str, TraceReport | TrainReport]]:
    found = (("layers", report.trace), ("training", report.training))
    return [(name, part) for name, part in found if part is not None]


def divergence(trace: TraceReport) -> Divergence | None:
    """None if both sides agree."""
    if trace.first is None:
        return None
    evidence = tuple(sorted(trace.evidence, key=lambda item: (item.kind == "output", item.path != trace.first)))
    unknown = ": ".join(["cause unknown", *(item.sentence for item in evidence[:1])])
    name, _, text = (trace.cause or unknown).partition(":")
    shown = evidence if trace.cause else evidence[1:]
    return Divergence(trace.first or "the whole module", name.strip(), text.strip(), shown)


def conditions(report: ParityReport) -> dict[str, dict[str, str]]:
    """Heading → name → value, of every part of the report; the trace and the training say only what is different."""
    parts = [part for part in (report, report.trace, report.training) if part is not None]
    of_run = {"dtype": report.dtype, "seed": report.seed, **_flat(report.conditions)}
    found = {
        "Device": _merged([part.device for part in parts]),
        "Versions": _merged([part.versions for part in parts]),
        "Comparison": _merged([of_run]),
    }
    for heading, part in (("Trace", report.trace), ("Training", report.training)):
        if part is not None:
            flat = _flat(part.conditions)
            found[heading] = _merged([{name: flat[name] for name in flat if of_run.get(name) != flat[name]}])
    return {heading: values for heading, values in found.items() if values}


def notes(report: ParityReport) -> list[str]:
    """Of every part, each once."""
    parts = [part for part in (report, report.trace, report.training) if part is not None]
    return list(dict.fromkeys(note for part in parts for note in part.notes))


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names as words; values that are not the same in all parts stand side by side."""
    merged: dict[str, list[str]] = {}
    for part in parts:
        for name, value in part.items():
            values = merged.setdefault(name, [])
            if str(value) not in values:
                values.append(str(value))
    return {name.replace("_", " "): " / ".join(values) for name, values in merged.items()}


def _flat(conditions: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in conditions.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}, ")
        else:
            flat[prefix + name] = value
    return flat
