"""The criterion against numbers worked out by hand."""

import math

import ml_dtypes
import numpy as np
import pytest

from jaxattn.parity.criterion import (
    algorithm_verdict,
    deviation,
    gradient_scale,
    largest,
    output_scale,
    rounding_verdict,
    ulp,
)

FLOAT32, FLOAT16, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, FLOAT32, 2.0**-23),
        (1.5, FLOAT32, 2.0**-23),
        (2.0, FLOAT32, 2.0**-22),
        (-5.0, FLOAT32, 2.0**-21),
        (0.75, FLOAT32, 2.0**-24),
        (0.0, FLOAT32, 2.0**-149),
        (1e-45, FLOAT32, 2.0**-149),
        (1.0, BFLOAT16, 2.0**-7),
        (5.0, BFLOAT16, 2.0**-5),
        (1.0, FLOAT16, 2.0**-10),
        (1000.0, FLOAT16, 0.5),
        (0.0, FLOAT16, 2.0**-24),
    ],
)
def test_ulp(value: float, dtype: np.dtype, expected: float) -> None:
    assert ulp(value, dtype) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_ulp_is_the_spacing_of_numpy(dtype: type) -> None:
    values = np.abs(np.random.default_rng(0).standard_normal(200) * 10.0 ** np.arange(-7.0, 3.0).repeat(20))
    for value in values.astype(dtype):
        assert ulp(float(value), np.dtype(dtype)) == float(np.spacing(value))


def test_scales() -> None:
    assert output_scale(np.array([0.25, -0.5])) == 1.0
    assert output_scale(np.array([0.25, -6.0, NAN, INF])) == 6.0
    assert gradient_scale([np.array([0.25, -0.5]), np.zeros((0, 3)), np.array([NAN, -0.75])]) == 0.75
    assert gradient_scale([]) == 0.0
    assert largest(np.array([NAN, -INF])) == 0.0
    assert largest(np.array([-2.0, 1.0], ml_dtypes.bfloat16)) == 2.0


def test_algorithm_bound() -> None:
    truth = np.array([8.0, 1.0])
    assert algorithm_verdict(truth + [0, 7e-12], truth, scale=8.0, tolerance=1e-12).problem is None
    verdict = algorithm_verdict(truth + [0, 9e-12], truth, scale=8.0, tolerance=1e-12)
    assert verdict.allowed == 8e-12
    assert verdict.problem == "9e-12 > 8e-12"


def test_rounding_bound_of_the_largest_error() -> None:
    """torch off by 2⁻²⁰ in one place of four, M = 2: allowed 4 · 2⁻²⁰ + 2 · 2⁻²² = 4.5 · 2⁻²⁰."""
    truth, unit = np.full(4, 2.0), 2.0**-20
    theirs = truth + [unit, 0, 0, 0]

    def verdict(error: float):
        return rounding_verdict(truth + [0, error, 0, 0], theirs, truth, scale=2.0, dtype=FLOAT32)[0]

    # The rms of torch is unit/2, so (3/2 + 1/8) · unit is allowed: an error of 3.25 · unit in one place of four.
    assert verdict(3.25 * unit).allowed == 4.5 * unit
    assert verdict(3.25 * unit).allowed_rms == 1.625 * unit
    assert verdict(3.25 * unit).problem is None
    assert "rms" in str(verdict(3.5 * unit).problem)
    assert "rms" not in str(verdict(4.75 * unit).problem)
    assert verdict(4.75 * unit).problem is not None


def test_an_exact_torch_still_allows_two_ulps() -> None:
    truth = np.full(1000, 1.0)
    ours = truth + np.eye(1, 1000, 3)[0] * 2 * 2.0**-23
    verdict, theirs = rounding_verdict(ours, truth, truth, scale=1.0, dtype=FLOAT32)
    assert theirs.largest == 0.0 and verdict.problem is None
    ours = truth + np.eye(1, 1000, 3)[0] * 2.5 * 2.0**-23
    assert rounding_verdict(ours, truth, truth, scale=1.0, dtype=FLOAT32)[0].problem is not None


def test_the_dtype_sets_the_unit() -> None:
    truth = np.ones(4)
    ours = truth + 2.0**-9
    assert rounding_verdict(ours, truth, truth, scale=1.0, dtype=BFLOAT16)[0].problem is None
    assert rounding_verdict(ours, truth, truth, scale=1.0, dtype=FLOAT16)[0].problem is not None


def test_equal_nan_and_infinities_are_equal() -> None:
    values = np.array([NAN, INF, -INF, 1.0])
    found = deviation(values, values)
    assert (found.largest, found.rms, found.problem) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("values", "truth", "message"),
    [
        ([NAN, 1.0], [1.0, 1.0], "Flax is NaN at 1 of 2 places where torch is not"),
        ([1.0, 1.0], [NAN, NAN], "torch is NaN at 2 of 2 places where Flax is not"),
        ([INF, 1.0], [NAN, 1.0], "torch is NaN at 1 of 2 places where Flax is not"),
        ([INF, 1.0], [-INF, 1.0], "infinities differ at 1 of 2 places"),
        ([1.0, 3.0], [1.0, INF], "infinities differ at 1 of 2 places"),
    ],
)
def test_one_sided_nan_and_infinity_fail(values: list[float], truth: list[float], message: str) -> None:
    verdict = algorithm_verdict(np.array(values), np.array(truth), scale=1.0, tolerance=1e-12)
    assert verdict.problem == message
    assert rounding_verdict(np.array(values), np.array(truth), np.array(truth), scale=1.0, dtype=FLOAT32)[0].problem


def test_ours_may_overflow_only_where_torch_does() -> None:
    truth = np.array([7e4, 1.0])
    overflowed, finite = np.array([INF, 1.0]), np.array([65504.0, 1.0])
    assert rounding_verdict(overflowed, overflowed, truth, scale=7e4, dtype=FLOAT16)[0].problem is None
    assert rounding_verdict(overflowed, finite, truth, scale=7e4, dtype=FLOAT16)[0].problem is not None
    wrong = np.array([5.0, 1.0])
    assert rounding_verdict(wrong, overflowed, truth, scale=7e4, dtype=FLOAT16)[0].problem is not None


def test_empty_tensors_pass() -> None:
    empty = np.zeros((0, 5))
    assert algorithm_verdict(empty, empty, scale=0.0, tolerance=1e-11).problem is None
    assert rounding_verdict(empty, empty, empty, scale=0.0, dtype=FLOAT32)[0].problem is None
