"""Where a problem is ill-conditioned the limit is what torch's own result moves by; faults are found all the same."""

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from jaxattn.parity import compare, trace
from jaxattn.parity.arguments import Arguments
from jaxattn.parity.conditioning import REACH, moved_arguments, moved_module, movement
from jaxattn.parity.tracing.findings import Cause, either, explains

D = 12


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(D, 2, 16, norm_first=True, batch_first=True).eval()


def far(seed: int) -> np.ndarray:
    """One float64 ulp at 1e4 is 1.8e-12: a norm of differences of 1 can't be nearer than that."""
    return 1e4 + np.random.default_rng(seed).standard_normal((3, 5, D))


def test_every_element_moves_by_one_ulp_and_blocking_stays() -> None:
    array = np.array([1.0, -1e4, np.inf, -np.inf, np.nan, -np.finfo(np.float64).max])
    given = Arguments.of(lambda x, i: None, (array, np.arange(3)), {})
    moved, same = moved_arguments(given, 0).arrays
    assert np.abs(moved[:2] - array[:2]) == pytest.approx([2.0**-52, 2.0**-39], rel=0.51)
    assert np.array_equal(moved[2:5], array[2:5], equal_nan=True) and np.isfinite(moved[5])
    assert np.array_equal(same, np.arange(3))
    assert np.array_equal(moved, moved_arguments(given, 0).arrays[0], equal_nan=True)


def test_the_module_that_is_moved_is_a_copy() -> None:
    module = nn.Linear(2, 3)
    before = module.weight.detach().clone()
    moved = moved_module(module, 0)
    assert torch.equal(module.weight, before) and moved.weight.dtype == torch.float64
    assert 0 < float((moved.weight.detach() - before.double()).abs().max()) < 1e-15


def test_movement_of_arrays() -> None:
    assert movement(np.array([1.0, np.nan]), [np.array([1.5, np.nan]), np.array([0.75, 3.0])]) == REACH * 0.5
    assert movement(np.array([1.0]), []) == 0.0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_right_norm_far_from_zero_passes_and_says_why(seed: int) -> None:
    module = layer().norm1
    report = compare(module, jaxattn.from_torch(module), far(seed))
    report.assert_ok()
    row = report.row("output")
    assert row.ill_conditioned and row.allowed_float64 is not None and 3e-12 < row.allowed_float64 < 1e-10
    assert "ill-conditioned: limit" in row.verdict and report.to_json()["rows"][1]["ill_conditioned"]


@pytest.mark.parametrize("seed", [0, 2])
def test_a_right_layer_far_from_zero_is_not_blamed(seed: int) -> None:
    module = layer()
    report = trace(module, jaxattn.from_torch(module), far(seed))
    report.assert_ok()
    assert report.cause is None and "ill-conditioned: limit" in str(report)


def test_a_wrong_epsilon_far_from_zero_is_named() -> None:
    module = layer()
    twin = jaxattn.from_torch(module)
    twin.norm2.epsilon = 1e-6  # pyright: ignore[reportAttributeAccessIssue] -- it has one
    report = trace(module, twin, far(0))
    assert report.first == "norm2" and str(report.cause).startswith("epsilon")
    assert not compare(module, twin, far(0)).ok


def test_what_is_well_conditioned_is_run_no_further(monkeypatch) -> None:
    def never(*arguments):
        raise AssertionError("moved without need")

    monkeypatch.setattr("jaxattn.parity.runs.moved_module", never)
    monkeypatch.setattr("jaxattn.parity.tracing.measuring.moved_module", never)
    module, x = layer().norm1, np.random.default_rng(0).standard_normal((3, D))
    twin = jaxattn.from_torch(module)
    report = compare(module, twin, x)
    assert report.ok and not any(row.ill_conditioned for row in report.rows)
    assert trace(module, twin, x).ok


def test_a_hypothesis_that_changes_nothing_is_no_cause() -> None:
    truth, ours = [np.array([1.0, 2.0])], [np.array([1.0, 2.0 + 1e-11])]
    assert not explains(ours, truth, truth)
    assert explains([np.array([2.0])], [np.array([2.0])], [np.array([1.0])])


def test_of_causes_that_fit_equally_none_is_left_out() -> None:
    a, b = Cause("a", "one"), Cause("b", "two")
    assert either([]) is None and either([a, a]) == a
    assert str(either([a, b])) == "a or b: one; or two"
