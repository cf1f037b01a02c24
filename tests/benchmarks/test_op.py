"""`op` and `op_grad` on tiny shapes: what they print and write, and that nothing wrong gets a number."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks import op, systems
from benchmarks.gate import exact_parts
from benchmarks.grid import Point
from benchmarks.systems import FLAX, JAX_NN, KERAS, OURS, TORCH

POINTS = [Point(1, 2, 2, 16, 16, 8), Point(2, 4, 2, 13, 13, 8, causal=True)]
pytestmark = pytest.mark.usefixtures("dense", "once")


@pytest.fixture
def one_point(monkeypatch):
    monkeypatch.setattr(op, "TINY", POINTS[1:])


def test_op_writes_times_ratios_and_verdicts(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(op, "TINY", POINTS[1:])
    assert entry.main(["op", "--quick", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["op.json", "op.png"]
    data = json.loads((tmp_path / "op.json").read_text())
    assert data["conditions"]["quick"] is True and data["conditions"]["rounds"] == 1
    assert [result["label"] for result in data["results"]] == [point.label for point in POINTS[1:]]
    for result, point in zip(data["results"], POINTS[1:], strict=True):
        assert list(result["timings"]) == [OURS, TORCH, JAX_NN] and result["operations"] == point.products
        assert list(result["ratio_over"]) == [TORCH, JAX_NN] and list(result["compile_s"]) == [OURS, JAX_NN]
        assert result["parity"]["left_out"] == {} and result["parity"]["errors"][OURS]["output"] < 2e-6
        seconds = {name: timing["median_s"] for name, timing in result["timings"].items()}
        assert result["ratio_over"][TORCH]["median"] == pytest.approx(seconds[TORCH] / seconds[OURS])
    assert list(data["summary"]) == [TORCH, JAX_NN] and len(data["targets"]) == 5
    printed = capsys.readouterr().out
    assert "B2 N4 K2 T13 H8 causal: parity ok" in printed and "GFLOP/s" in printed and "n=1" in printed
    assert "over torch SDPA, geometric mean" in printed


def test_op_grad_checks_and_times_gradients(one_point, capsys, tmp_path):
    assert entry.main(["op_grad", "--quick", "--out", str(tmp_path)]) == 0
    [result] = json.loads((tmp_path / "op_grad.json").read_text())["results"]
    assert all(list(errors) == ["output", "dq", "dk", "dv"] for errors in result["parity"]["errors"].values())
    assert result["operations"] == 3.5 * POINTS[1].products


def test_a_peer_that_differs_gets_no_number(one_point, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(systems.JAX_SYSTEMS, JAX_NN, lambda point: lambda q, k, v: q * 1.0)
    assert entry.main(["op", "--quick", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "jax.nn is left out: ParityFailure: jax.nn: output differs" in captured.err
    assert f"    {JAX_NN}" not in captured.out and "ours over jax.nn" not in captured.out
    data = json.loads((tmp_path / "op.json").read_text())
    [result] = data["results"]
    assert list(result["timings"]) == [OURS, TORCH] and list(result["parity"]["left_out"]) == [JAX_NN]
    verdicts = {target["what"]: target for target in data["targets"]}
    assert verdicts["over jax.nn, geometric mean"]["met"] is False


def test_if_ours_differs_nothing_is_printed_or_written(one_point, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(systems.JAX_SYSTEMS, OURS, lambda point: lambda q, k, v: q * 1.0)
    monkeypatch.setattr(op, "interleave", lambda *given, **how: pytest.fail("timed"))
    assert entry.main(["op", "--quick", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "output differs" in captured.err and list(tmp_path.iterdir()) == []


def test_peers_that_are_absent_are_left_out_in_one_line(monkeypatch, capsys):
    def absent(point):
        raise ImportError("no such package")

    monkeypatch.setitem(systems.JAX_SYSTEMS, KERAS, absent)
    monkeypatch.setattr(systems, "TINY", POINTS[:1])
    assert systems.available([FLAX, KERAS], backward=False) == [FLAX]
    assert capsys.readouterr().err == "keras is left out: ImportError: no such package\n"


def test_only_some_points_write_nothing_and_unknown_ones_are_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(op, "TINY", POINTS)
    assert entry.main(["op", "--quick", "--only", "K2", "--out", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == [] and "T16" not in capsys.readouterr().out
    assert entry.main(["op", "--quick", "--only", "T99"]) == 2


def test_decoding_sees_the_whole_cache_in_every_system():
    point = Point(1, 2, 2, 1, 9, 8, causal=True)
    q, k, v, _ = point.arrays()
    [part] = exact_parts(point, [q, k, v, q], backward=False)[:1]
    for name in (TORCH, JAX_NN, OURS):
        [output] = systems.prepare(name, point, point.arrays(), backward=False).results()
        np.testing.assert_allclose(output[0, :, :1], part.results[0], atol=1e-6)
