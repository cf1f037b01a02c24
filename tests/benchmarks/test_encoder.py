"""The suite `encoder`: what it measures, and when it counts a target as missed."""

import json

import pytest

from benchmarks import encoder
from benchmarks.render import render_encoder
from jaxattn.interleaved import COMPILED, FLAX_EAGER, FLAX_JIT, TORCH_EAGER, Timing
from jaxattn.timing import ParityFailure

from .test_table import make_result


def timing(seconds: float) -> Timing:
    return Timing((seconds,), 1)


def test_targets_are_judged_by_the_slowest_port_and_both_of_torchs_ways():
    timings = {COMPILED: timing(1.0), TORCH_EAGER: timing(1.1), encoder.TORCH_COMPILE: timing(0.9)}
    port, eager, compiled = encoder.judge([2.1, 0.5], timings)
    assert (port.met, eager.met, compiled.met) == (False, True, False)
    assert eager.value == pytest.approx(1.1) and compiled.value == pytest.approx(0.9)
    *_, missing = encoder.judge([1.0], {COMPILED: timing(1.0), TORCH_EAGER: timing(1.1)})
    assert not missing.met and missing.to_json()["measured"] == "not measured"


def test_the_documented_encoder_is_the_one_measured():
    module = encoder.torch_encoder(encoder.TINY)
    assert (len(module.layers), module.layers[0].self_attn.num_heads) == (2, 4) and not module.training
    assert (encoder.SIZES["num_layers"], encoder.SIZES["d_model"]) == (12, 768)
    assert (encoder.SIZES["batch"], encoder.SIZES["length"]) == (4, 256)
    assert not module.layers[0].linear1.weight.equal(module.layers[1].linear1.weight)


def test_a_parity_failure_writes_no_number(monkeypatch, tmp_path, capsys):
    def fail(*given, **how):
        raise ParityFailure("TransformerEncoder", "where they differ")

    monkeypatch.setattr(encoder, "bench_pair", fail)
    monkeypatch.setattr(encoder, "compiled_by_torch", lambda *given: {})
    assert encoder.main(["--quick", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "where they differ" in captured.err and list(tmp_path.iterdir()) == []


def test_torch_compile_that_fails_is_left_out(monkeypatch, capsys):
    def broken(module, **options):
        def call(x):
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr("torch.compile", broken)
    x = encoder.np.ones((2, 8, 32), "float32")
    assert encoder.compiled_by_torch(encoder.torch_encoder(encoder.TINY), x) == {}
    assert "torch.compile is left out: RuntimeError: no compiler" in capsys.readouterr().err


def test_table():
    medians = {FLAX_EAGER: 2.0, FLAX_JIT: 1.0, COMPILED: 0.99, TORCH_EAGER: 1.2, encoder.TORCH_COMPILE: 1.1}
    target = {"what": "from_torch, the slowest", "measured": "1.10 s", "wanted": "≤ 2.00 s", "met": True}
    conditions = {"quick": False, "inputs": "batch 4", "dtype": "float32", "cores": 2, "cpu": "a CPU", "rounds": 9}
    result = make_result(medians, batch=4, length=256)
    data = json.loads(json.dumps({"conditions": conditions, "targets": [target], "results": [result]}))
    text = render_encoder(data)
    assert "| 4 × 256 | 2.4e-07 (3.1e-07) | 2.00 s | 1.00 s | 990 ms | 1.20 s | 1.10 s |" in text
    assert "from_torch, the slowest 1.10 s (target ≤ 2.00 s)" in text
