"""Means, worst points and verdicts, from made ratios."""

import math

import pytest

from benchmarks.ratios import SpeedTarget, Verdict, geometric_mean, print_verdicts, speed_verdicts, summary


def result(label: str, compile_s: float = 0.5, **over: float) -> dict:
    ratios = {name.replace("_", " "): {"median": value} for name, value in over.items()}
    return {"label": label, "ratio_over": ratios, "compile_s": {"ours": compile_s}}


def test_a_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


def test_the_summary_names_the_worst_point():
    over = summary([result("a", torch=0.5), result("b", torch=2.0), result("c")], "torch")
    assert over == {"points": 2, "of": 3, "geometric_mean": pytest.approx(1.0), "least": 0.5, "least_at": "a"}


def test_targets_are_met_or_missed_by_mean_and_by_worst_point(capsys):
    results = [result("a", torch=0.8, jax=2.0), result("b", 2.5, torch=1.8, jax=5.0)]
    targets = [SpeedTarget("torch", 1.0, 0.85), SpeedTarget("jax", 3.0, None)]
    verdicts = speed_verdicts(results, targets, "ours")
    assert [verdict.met for verdict in verdicts] == [True, False, True, False]
    assert print_verdicts(verdicts) is False
    assert capsys.readouterr().out.splitlines() == [
        "met: over torch, geometric mean: 1.2× (target ≥ 1×)",
        "MISSED: over torch, least (a): 0.8× (target ≥ 0.85×)",
        "met: over jax, geometric mean: 3.16× (target ≥ 3×)",
        "MISSED: compilation, longest (b): 2.50 s (target ≤ 2.00 s)",
    ]


def test_a_mean_over_fewer_points_meets_nothing():
    verdicts = speed_verdicts([result("a", torch=9.0), result("b")], [SpeedTarget("torch", 1.0, 0.5)], "ours")
    assert [verdict.met for verdict in verdicts] == [False, False, True]
    stated = verdicts[0].to_json()
    assert stated["value"] is None and stated["measured"] == "not measured"


def test_at_most_and_units():
    verdict = Verdict("memory", 192.4, 192, at_least=False, unit="MiB")
    assert not verdict.met and verdict.to_json()["wanted"] == "≤ 192 MiB"
    assert Verdict("growth", 1.04, 1.1, False, "").to_json()["measured"] == "1.04"
    assert Verdict("a hair below", 0.9996, 1.0).to_json() == {
        "what": "a hair below",
        "value": 0.9996,
        "measured": "1×",
        "wanted": "≥ 1×",
        "met": False,
    }
