"""What "the same" means: the numbers and the formulas, in NumPy.

Algorithm (both sides in float64):  |Δ| ≤ 1e-12 · M for outputs, |Δ| ≤ 1e-11 · M for gradients.
Training (both sides in float64): |Δ loss| ≤ 1e-9 · max(1, |loss|), |Δ parameter| ≤ 1e-9.
Rounding (float32, bfloat16, float16), against the float64 run on the same rounded parameters and inputs:
    max|ours − truth| ≤ 4 · max|torch − truth| + 2 ulp(M)   and   rms ≤ 3 · rms of torch + ½ ulp(M).
M is max(1, max|truth|) of a tensor for outputs, and the largest gradient of the whole module for gradients: a key bias
has a zero gradient, relative to itself nothing holds. Where torch's own float64 result moves further than the algorithm
criterion allows when its inputs and parameters move by one ulp, that movement is the limit (see `conditioning`).
Elements that are finite on neither side are counted, and prove nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

OUTPUT_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-11
TRAINING_TOLERANCE = 1e-9
MAX_FACTOR, MAX_ULPS = 4.0, 2.0
RMS_FACTOR, RMS_ULPS = 3.0, 0.5
#: A gradient whose largest element is below this share of the module's largest is zero, and listed apart.
ZERO_GRADIENT = 1e-12


@dataclass(frozen=True)
class Deviation:
    """How far values are from the truth; `problem` says what no number can (a NaN on one side).

    `not_finite` of the `size` elements could not be measured, and are no problem: both sides have the same there.
    """

    largest: float
    rms: float
    problem: str | None = None
    size: int = 0
    not_finite: int = 0


@dataclass(frozen=True)
class Verdict:
    """A deviation and what is allowed; `allowed_rms` only where the criterion bounds the rms too."""

    error: Deviation
    allowed: float
    allowed_rms: float | None = None

    @property
    def problem(self) -> str | None:
        """What fails, or None."""
        if self.error.problem:
            return self.error.problem
        if not self.error.largest <= self.allowed:
            return f"{self.error.largest:.2g} > {self.allowed:.2g}"
        if self.allowed_rms is not None and not self.error.rms <= self.allowed_rms:
            return f"rms {self.error.rms:.2g} > {self.allowed_rms:.2g}"
        return None


def largest(array: np.ndarray) -> float:
    """The largest finite magnitude, 0 if there is none."""
    values = np.abs(np.asarray(array, np.float64))
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


def output_scale(truth: np.ndarray) -> float:
    """M of an output or of weights: max(1, max|truth|)."""
    return max(1.0, largest(truth))


def gradient_scale(truths: Iterable[np.ndarray]) -> float:
    """M of every gradient: the largest gradient of the whole module, parameters and inputs."""
    return max((largest(truth) for truth in truths), default=0.0)


def ulp(value: float, dtype: np.dtype) -> float:
    """The step of `dtype` at |value|: 2^(⌊log₂|value|⌋ − mantissa bits), subnormals included."""
    info = ml_dtypes.finfo(dtype)
    exponent = math.frexp(abs(value))[1] - 1 if value else int(info.minexp)
    return math.ldexp(1.0, max(exponent, int(info.minexp)) - int(info.nmant))


def agreeing(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Where both are equal: the same number, the same infinity, or both NaN."""
    return (values == reference) | (np.isnan(values) & np.isnan(reference))


def deviation(values: np.ndarray, truth: np.ndarray, *, excused: np.ndarray | None = None) -> Deviation:
    """max and rms of values − truth over the finite places.

    Args:
        values: the side that is measured, any shape.
        truth: the same shape.
        excused: places where a NaN or an infinity on one side only is no problem.
    """
    values, truth = (np.atleast_1d(np.asarray(array, np.float64)) for array in (values, truth))
    finite = np.isfinite(values) & np.isfinite(truth)
    delta = np.abs(np.subtract(values, truth, where=finite, out=np.zeros(np.shape(values))))
    measured = int(finite.sum())
    rms = float(np.sqrt(np.sum(delta**2) / measured)) if measured else 0.0
    odd = ~finite & ~agreeing(values, truth)
    if excused is not None:
        odd &= ~excused
    problem = _problem(values, truth, odd)
    return Deviation(float(np.max(delta, initial=0.0)), rms, problem, delta.size, int((~finite & ~odd).sum()))


def _problem(values: np.ndarray, truth: np.ndarray, odd: np.ndarray) -> str | None:
    if not odd.any():
        return None
    ours, theirs = np.isnan(values) & odd, np.isnan(truth) & odd
    if ours.any():
        return f"Flax is NaN at {int(ours.sum())} of {odd.size} places where torch is not"
    if theirs.any():
        return f"torch is NaN at {int(theirs.sum())} of {odd.size} places where Flax is not"
    return f"infinities differ at {int(odd.sum())} of {odd.size} places"


def algorithm_verdict(
    ours: np.ndarray, truth: np.ndarray, *, scale: float, tolerance: float, movement: float = 0.0
) -> Verdict:
    """|ours − truth| ≤ tolerance · M, or ≤ what the truth itself moves by with its inputs; both computed in float64."""
    return Verdict(deviation(ours, truth), max(tolerance * scale, movement))


def rounding_verdict(
    ours: np.ndarray, theirs: np.ndarray, truth: np.ndarray, *, scale: float, dtype: np.dtype
) -> tuple[Verdict, Deviation]:
    """Ours is about as near to the truth as torch is; also gives torch's own deviation.

    Where torch leaves the range of `dtype` (float16 ends at 65504) ours may do the same, and nothing is measured.

    Args:
        ours: our result at `dtype`.
        theirs: torch's result at `dtype`.
        truth: the float64 result on the same parameters and inputs.
        scale: M.
        dtype: of both results.
    """
    ours, theirs = (np.atleast_1d(np.asarray(array, np.float64)) for array in (ours, theirs))
    overflow = ~np.isfinite(theirs)
    torch_error = deviation(theirs, truth, excused=overflow)
    unit = ulp(scale, dtype)
    verdict = Verdict(
        deviation(ours, truth, excused=overflow & agreeing(ours, theirs)),
        MAX_FACTOR * torch_error.largest + MAX_ULPS * unit,
        RMS_FACTOR * torch_error.rms + RMS_ULPS * unit,
    )
    return verdict, torch_error
