"""One call of both sides judged: by itself on torch's own input, and in the whole run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arguments import is_floating
from ..criterion import OUTPUT_TOLERANCE, Verdict, algorithm_verdict, output_scale, rounding_verdict
from ..outputs import Flat
from ..runs import FLOAT32
from ..trace_report import Layer
from .flax_calls import FlaxCall
from .torch_calls import TorchCall

#: How far each of torch's outputs of a call moves when what it is made of moves by one ulp; called where that matters.
Moves = Callable[[], list[float]]


@dataclass(frozen=True)
class Local:
    """A Flax submodule on torch's input of one call: what came out, or what it raised."""

    result: FlaxCall | None
    error: Exception | None = None

    @property
    def outputs(self) -> list[np.ndarray]:
        return [] if self.result is None else list(self.result.outputs.arrays)


def layer_of(
    call: TorchCall,
    path: str,
    local: Local,
    whole: FlaxCall | None,
    narrow: TorchCall | None,
    moves: tuple[Moves, Moves],
) -> Layer:
    by_itself, end_to_end, problems = None, None, []
    theirs = None if narrow is None else narrow.outputs
    if local.result is not None:
        by_itself, problem = judge(call.outputs, local.result.outputs, theirs, moves[0] if call.path else moves[1])
        problems += [f"local: {problem}"] if problem else []
    elif local.error is not None:
        problems.append(f"local: Flax raises {type(local.error).__name__}: {str(local.error).splitlines()[0]}")
    if whole is not None and whole.outputs.shapes[:1] == call.outputs.shapes[:1]:
        end_to_end, problem = judge(call.outputs, whole.outputs, theirs, moves[1])
        if problem and call.path:
            problems.append(f"end to end: {problem}")
        elif end_to_end is not None and not problem and problems:
            # Right where Flax calls it: it only takes other arguments than torch's.
            by_itself, problems = None, []
    kinds = [found.kind for found in (whole, local.result) if found is not None]
    measured = [judged for judged in (by_itself, end_to_end) if judged is not None]
    return Layer(
        call.path,
        path,
        call.call,
        type(call.module).__name__,
        kinds[0] if kinds else "",
        call.outputs.shapes[0] if call.outputs.shapes else (),
        *(None, None) if by_itself is None else (by_itself.worst.error.largest, by_itself.worst.allowed),
        *(None, None) if end_to_end is None else (end_to_end.worst.error.largest, end_to_end.worst.allowed),
        tuple(problems),
        sum(array.size for array in call.outputs.arrays) if measured else None,
        max((judged.not_finite for judged in measured), default=0),
        any(judged.ill_conditioned for judged in measured),
    )


@dataclass(frozen=True)
class Judged:
    """All outputs of a call: the worst verdict, how many elements could not be measured, and what set the limit."""

    worst: Verdict
    not_finite: int
    ill_conditioned: bool


def judge(truth: Flat, ours: Flat, narrow: Flat | None, moves: Moves) -> tuple[Judged | None, str | None]:
    """The verdict over the outputs of both, by order, and what fails."""
    verdicts, ill_conditioned = [], False
    for index, (theirs, mine) in enumerate(zip(truth.arrays, ours.arrays, strict=False)):
        if theirs.shape != mine.shape:
            return None, f"shape {mine.shape} in Flax, {theirs.shape} in torch"
        scale = output_scale(theirs) if is_floating(theirs) else 0.0
        verdict = algorithm_verdict(mine, theirs, scale=scale, tolerance=OUTPUT_TOLERANCE)
        if verdict.problem is not None and verdict.error.problem is None and is_floating(theirs):
            movement = moves()[index]
            ill_conditioned |= movement > verdict.allowed
            verdict = Verdict(verdict.error, max(verdict.allowed, movement))
        if verdict.problem is not None and narrow is not None and is_floating(theirs):
            verdict, _ = rounding_verdict(mine, narrow.arrays[index], theirs, scale=scale, dtype=FLOAT32)
        verdicts.append(verdict)
    if not verdicts:
        return None, None
    worst = max(verdicts, key=lambda v: (v.problem is not None, v.error.largest / v.allowed if v.allowed else 0.0))
    return Judged(worst, sum(verdict.error.not_finite for verdict in verdicts), ill_conditioned), worst.problem
