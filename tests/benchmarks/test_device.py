"""`device`: one line without an accelerator; with one (pretended here) proof before time."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn
from benchmarks import __main__ as entry
from benchmarks import device, op
from benchmarks.grid import Point
from benchmarks.systems import DENSE, JAX_NN, OURS
from jaxattn.interleaved import Timing

from .test_gate import torch_results


@pytest.fixture
def pretended(monkeypatch):
    """An accelerator, one tiny case, ours dense."""
    causal = np.tri(12, dtype=bool)
    monkeypatch.setattr(device, "accelerator", lambda: True)
    monkeypatch.setattr(device, "LENGTH", 12)
    monkeypatch.setattr(device, "HEADS", 4)
    monkeypatch.setattr(device, "WIDTH", 8)
    monkeypatch.setattr(device, "cases", lambda: [device.Case("causal", lambda: causal, causal[None], kv_heads=2)])
    monkeypatch.setattr(device, "IMPLEMENTATIONS", ("dense", "no such name"))
    monkeypatch.setattr(device, "TIMED", [Point(1, 2, 2, 16, 16, 8)])


def test_on_a_cpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(device, "prove_all", lambda dtypes: pytest.fail("ran"))
    assert entry.main(["device"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "No accelerator" in captured.err


def test_proof_then_times(pretended, monkeypatch, tmp_path):
    timings = {name: Timing((1e-3,), 1) for name in (OURS, DENSE, JAX_NN)}
    asked = []

    def measure(point, names, **how):
        asked.append((point.label, how["backward"], jnp.dtype(how["dtype"]).name))
        made = {"label": point.label, "operations": 1e9, "parity": {"errors": {OURS: {"output": 1e-3}}}}
        return {**made, "compile_s": {}, **op.timed(timings, OURS)}

    monkeypatch.setattr(device, "measure", measure)
    assert entry.main(["device", "--quick", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "device.json").read_text())
    assert [(row["implementation"], row["ok"]) for row in data["proofs"]] == [
        ("dense", True),
        ("no such name", True),
    ]
    assert "not offered" in data["proofs"][1]["verdict"] and {row["dtype"] for row in data["proofs"]} == {"bfloat16"}
    assert [result["backward"] for result in data["results"]] == [False, True]
    assert asked == [("B1 N2 T16 H8 full", False, "bfloat16"), ("B1 N2 T16 H8 full", True, "bfloat16")]


def test_a_failed_proof_gives_no_time(pretended, monkeypatch, tmp_path, capsys):
    row = {"dtype": "float32", "case": "full", "implementation": "auto", "ok": False, "verdict": "FAILED: output 1 > 0"}
    monkeypatch.setattr(device, "prove_all", lambda dtypes: [{**row, "ok": True, "verdict": "ok"}, row])
    monkeypatch.setattr(device, "measure", lambda *given, **how: pytest.fail("timed"))
    assert entry.main(["device", "--quick", "--out", str(tmp_path)]) == 1
    assert "FAILED: output" in capsys.readouterr().out and list(tmp_path.iterdir()) == []


def test_an_implementation_may_err_as_much_as_the_yardstick_and_hardly_more():
    truth = [np.linspace(-1, 1, 8) for _ in range(4)]
    yardstick = [array + 1e-3 for array in truth]
    for error, problems in ((3e-3, []), (1e-2, ["dk"]), (np.nan, ["dk"])):
        results = [yardstick[0], yardstick[1], truth[2] + error, yardstick[3]]
        found, largest = device.judge(results, yardstick, truth, np.dtype(np.float32))
        assert [problem.split()[0] for problem in found] == problems
        assert error != error or largest == pytest.approx(error)


def test_the_exact_results_are_whole(pretended):
    [case], point = device.cases(), Point(device.BATCH, 4, 2, 12, 12, 8)
    expected = torch_results(point, case.array)
    for ours, theirs in zip(device.exact(case, point.arrays()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_every_query_of_every_real_case_has_a_key():
    for case in device.cases() if hasattr(jaxattn, "masks") else []:
        assert case.array is None or case.array.any(axis=-1).all()
        assert dataclasses.asdict(case)["name"] and jnp.ndim(case.array if case.array is not None else 0) in (0, 3)
