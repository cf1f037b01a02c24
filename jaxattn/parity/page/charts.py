"""Training as two small line charts: the losses of both sides, and how far they are apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..criterion import TRAINING_TOLERANCE
from ..train_report import Step, TrainReport
from .scale import LogScale, Tick

#: Of the drawing, in its own units; the page scales it.
WIDTH, HEIGHT = 400.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 20.0, 34.0
#: The shortest scale of errors.
ERRORS = (-17, -6)
MOST_MARKERS = 60


@dataclass(frozen=True)
class Line:
    """One curve; `name` is also its class in the style sheet."""

    name: str
    label: str
    points: str
    markers: list[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Ready to draw: x grows to the right and y downwards."""

    title: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    first: float | None
    budget: float | None = None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def training_charts(training: TrainReport) -> list[Chart]:
    """Losses, and errors; none without steps."""
    return [_losses(training), _errors(training)] if training.steps else []


def _losses(training: TrainReport) -> Chart:
    steps = training.steps
    finite = [loss for step in steps for loss in (step.torch_loss, step.flax_loss) if math.isfinite(loss)] or [0.0]
    low, high = min(finite), max(finite)
    margin = 0.06 * (high - low) or 0.5 * max(abs(high), 1.0)
    low, high = low - margin, high + margin

    def height(loss: float) -> float | None:
        return _down((loss - low) / (high - low)) if math.isfinite(loss) else None

    ticks = [Tick(_down((value - low) / (high - low)), f"{value:.3g}") for value in _round_values(low, high)]
    lines = [
        _line("torch", "PyTorch", steps, [height(step.torch_loss) for step in steps]),
        _line("flax", "Flax", steps, [height(step.flax_loss) for step in steps]),
    ]
    return Chart("Loss", lines, _step_ticks(steps), ticks, _first_at(training))


def _errors(training: TrainReport) -> Chart:
    steps = training.steps
    curves = {
        "loss": ("loss", [step.loss_error for step in steps]),
        "gradient": ("gradients", [step.gradient_error for step in steps]),
        "parameter": ("parameters", [step.parameter_error for step in steps]),
    }
    scale = LogScale.of((value for _, values in curves.values() for value in values), ERRORS)
    lines = [
        _line(name, label, steps, [_down(scale.share(value) / 100) for value in values])
        for name, (label, values) in curves.items()
    ]
    ticks = [Tick(_down(tick.at / 100), tick.text) for tick in scale.ticks]
    if any(value == 0 for _, values in curves.values() for value in values):
        ticks = [Tick(_down(0.0), "0"), *ticks]
    budget = _down(scale.share(TRAINING_TOLERANCE) / 100)
    return Chart("Difference, and its budget", lines, _step_ticks(steps), ticks, _first_at(training), budget)


def _line(name: str, label: str, steps: Sequence[Step], heights: Sequence[float | None]) -> Line:
    points = [(_across(place, steps), height) for place, height in enumerate(heights) if height is not None]
    return Line(
        name, label, " ".join(f"{x:.1f},{y:.1f}" for x, y in points), points if len(points) <= MOST_MARKERS else []
    )


def _across(place: int, steps: Sequence[Step]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * ((place + 0.5) / len(steps))


def _down(share: float) -> float:
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _first_at(training: TrainReport) -> float | None:
    return next(
        (_across(i, training.steps) for i, step in enumerate(training.steps) if step.index == training.first), None
    )


def _step_ticks(steps: Sequence[Step]) -> list[Tick]:
    every = math.ceil(len(steps) / 8)
    return [Tick(_across(i, steps), str(step.index)) for i, step in enumerate(steps) if i % every == 0]


def _round_values(low: float, high: float) -> list[float]:
    """Three to six values at 1, 2 or 5 times a power of ten, inside the range."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
