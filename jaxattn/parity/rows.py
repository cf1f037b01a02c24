"""From the numbers of the runs to the rows of a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from .arguments import is_floating
from .criterion import (
    GRADIENT_TOLERANCE,
    OUTPUT_TOLERANCE,
    ZERO_GRADIENT,
    algorithm_verdict,
    gradient_scale,
    largest,
    output_scale,
    rounding_verdict,
)
from .report import Row
from .weights import WeightsCheck

#: At most so many differing tensors are named in a row.
LISTED = 5


@dataclass(frozen=True)
class Compared:
    """One tensor as every run gave it; the low ones are None when the parameters are float64 themselves.

    Attributes:
        what: its name in the report.
        truth: torch in float64.
        ours: Flax in float64.
        low_torch: torch at the low dtype.
        low_ours: Flax at the low dtype.
        float32_torch: torch at float32, where the truth is limited to that.
        widened: torch in float64 without its casts to float32, where those limit the truth.
        movement: what the truth moves by when torch's inputs and parameters move by one ulp; 0 where not measured.
    """

    what: str
    truth: np.ndarray
    ours: np.ndarray
    low_torch: np.ndarray | None = None
    low_ours: np.ndarray | None = None
    float32_torch: np.ndarray | None = None
    widened: np.ndarray | None = None
    movement: float = 0.0


def weights_row(check: WeightsCheck) -> Row:
    """Passes if every tensor is equal bit for bit."""
    listed = check.problems[:LISTED]
    if len(check.problems) > LISTED:
        listed.append(f"… ({len(check.problems)} tensors differ)")
    return Row("state dict, bit for bit", "weights", (len(check.names),), problems=tuple(listed))


def output_rows(outputs: Iterable[Compared], dtype: np.dtype) -> list[Row]:
    """Outputs and weights, each measured against its own size; integers and booleans must be equal in float64."""
    rows = []
    for output in outputs:
        if is_floating(output.truth):
            rows.append(_row(output, "output", dtype, output_scale(output.truth), OUTPUT_TOLERANCE))
        else:
            exact = algorithm_verdict(output.ours, output.truth, scale=0.0, tolerance=0.0)
            problems = () if exact.problem is None else (f"float64: {exact.problem}",)
            rows.append(Row(output.what, "output", output.truth.shape, exact.error.largest, 0.0, problems=problems))
    return rows


def fails_in_float64(*rows: Iterable[Row]) -> bool:
    """Whether one of the rows does."""
    return any(row.problems and row.problems[0].startswith("float64") for group in rows for row in group)


def nothing_row(outputs: Sequence[Row]) -> list[Row]:
    """A row that fails where the outputs have no elements at all: a comparison of nothing is no proof."""
    if any(row.elements for row in outputs):
        return []
    problem = "nothing to compare: both sides return no numbers"
    return [Row("outputs", "input", (len(outputs),), problems=(problem,))]


def gradient_rows(gradients: list[Compared], dtype: np.dtype) -> list[Row]:
    """Gradients, all measured against the largest of the module."""
    scale = gradient_scale(gradient.truth for gradient in gradients)
    return [_row(gradient, "gradient", dtype, scale, GRADIENT_TOLERANCE) for gradient in gradients]


def _resolved(tensor: Compared, scale: float, tolerance: float) -> np.ndarray:
    """The truth by which rounding is judged.

    A truth that is float32 inside can't tell which of two results at float32 is nearer: torch's, which rounds as it
    does, is without error, and ours is then judged by half an ulp of rms alone. Without its casts torch computes in
    float64 throughout, and where Flax gives the same within the algorithm criterion, two computations agree on numbers
    that neither has from the other. Where they don't, the run without casts proves nothing, and the truth stays.
    """
    if tensor.widened is None or tensor.widened.shape != tensor.truth.shape:
        return tensor.truth
    agreed = algorithm_verdict(
        tensor.ours, tensor.widened, scale=scale, tolerance=tolerance, movement=tensor.movement
    ).problem
    return tensor.truth if agreed is not None else tensor.widened


def _row(tensor: Compared, kind: str, dtype: np.dtype, scale: float, tolerance: float) -> Row:
    resolved = _resolved(tensor, scale, tolerance)
    double = algorithm_verdict(tensor.ours, tensor.truth, scale=scale, tolerance=tolerance, movement=tensor.movement)
    limited, ill_conditioned = False, tensor.movement > tolerance * scale
    if double.problem and tensor.float32_torch is not None:
        # The truth is off by float32's rounding: ours, in float64, must be as near to it as torch's float32 run is.
        double, _ = rounding_verdict(
            tensor.ours, tensor.float32_torch, resolved, scale=scale, dtype=jnp.dtype(jnp.float32)
        )
        limited, ill_conditioned = True, False
    problems = [] if double.problem is None else [f"float64: {double.problem}"]
    if kind == "output" and tensor.truth.size and not np.isfinite(tensor.truth).any():
        problems.append("float64: nothing to compare, no element is finite in torch")
    measured = {}
    if tensor.low_ours is not None and tensor.low_torch is not None:
        low, theirs = rounding_verdict(tensor.low_ours, tensor.low_torch, resolved, scale=scale, dtype=dtype)
        if low.problem is not None:
            problems.append(f"{dtype.name}: {low.problem}")
        measured = {
            "error": low.error.largest,
            "torch_error": theirs.largest,
            "allowed": low.allowed,
            "rms": low.error.rms,
            "torch_rms": theirs.rms,
            "allowed_rms": low.allowed_rms,
            "low_not_finite": low.error.not_finite if tensor.truth.size else 0,
        }
    return Row(
        ("gradient of " if kind == "gradient" else "") + tensor.what,
        kind,
        tensor.truth.shape,
        double.error.largest,
        double.allowed,
        problems=tuple(problems),
        zero=kind == "gradient" and largest(tensor.truth) <= ZERO_GRADIENT * scale and not np.isnan(tensor.truth).any(),
        limited=limited,
        ill_conditioned=ill_conditioned,
        not_finite=double.error.not_finite,
        **measured,
    )
