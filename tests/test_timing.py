"""A pair of modules: no time before parity, the same call on both sides, the shape of the report. No measured time."""

import json

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax.core import Tracer

import jaxattn
import torchref
from jaxattn import conditions as conditions_file
from jaxattn import timing
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, compile_time

ONCE = {"rounds": 1, "min_block_s": 0.0, "sleep_s": 0.0}


class Verdict:
    def __init__(self, ok: bool):
        self.ok = ok

    def to_json(self) -> dict:
        return {"ok": self.ok, "rows": []}


@pytest.fixture
def agreed(monkeypatch):
    """Parity that always passes, and the arguments it was asked about."""
    asked = []
    monkeypatch.setattr(
        "jaxattn.parity.compare", lambda *given, **options: asked.append((given, options)) or Verdict(True)
    )
    return asked


def make_pair():
    torch_module = torchref.ScaledDotProductSelfAttention(4)
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    return torch_module, jaxattn.from_torch(torch_module), (x,)


def test_no_time_without_parity(monkeypatch):
    monkeypatch.setattr("jaxattn.parity.compare", lambda *given, **options: Verdict(False))
    monkeypatch.setattr(timing, "interleave", lambda *given, **options: pytest.fail("timed"))
    monkeypatch.setattr(timing, "compile_time", lambda *given, **options: pytest.fail("compiled"))
    with pytest.raises(timing.ParityFailure, match="ScaledDotProductSelfAttention failed its parity check") as failure:
        timing.bench_pair(*make_pair(), **ONCE)
    assert failure.value.report.ok is False


def test_the_real_check_is_asked():
    torch_module = torchref.SinusoidalPositionalEncoding(4)
    right = jaxattn.from_torch(torch_module)

    class Wrong(nnx.Module):
        def __call__(self, x):
            return right(x) + 1e-3

    with pytest.raises(timing.ParityFailure) as failure:
        timing.bench_pair(torch_module, Wrong(), (np.ones((3, 4), np.float32),), **ONCE)
    assert not failure.value.report.ok


def test_the_report_holds_both_modes_parity_and_conditions(agreed):
    report = json.loads(json.dumps(timing.bench_pair(*make_pair(), rounds=2, min_block_s=0.0, sleep_s=0.0).to_json()))
    assert report["module"] == "ScaledDotProductSelfAttention"
    assert [mode["name"] for mode in report["modes"]] == ["output", "output and weights"]
    for mode in report["modes"]:
        assert list(mode["timings"]) == [FLAX_EAGER, FLAX_JIT, TORCH_EAGER]
        assert {timing_["n"] for timing_ in mode["timings"].values()} == {2}
        assert set(mode["jit_speedup_over"]) == {FLAX_EAGER, TORCH_EAGER}
        assert set(mode["jit_speedup_over"][TORCH_EAGER]) == {"median", "low", "high"}
    assert report["parity"]["ok"] is True
    conditions = report["conditions"]
    assert (conditions["shapes"], conditions["dtype"], conditions["rounds"]) == ([[3, 5, 4]], "float32", 2)
    assert conditions["threads"]["torch"] == conditions["cores"]
    assert set(conditions["versions"]) == {"python", "jax", "jaxlib", "flax", "torch", "numpy"}
    assert {"date", "cpu", "device", "cores_busy_elsewhere"} <= set(conditions)


class TorchWatcher(torch.nn.Module):
    """Gives its inputs back, and writes down how it is called."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = torch.nn.Dropout(0.5), []

    def forward(self, query, key, value, mask=None, need_weights=True):
        state = (torch.is_inference_mode_enabled(), self.training, self.inner.training, torch.get_num_threads())
        self.calls.append((query is key, query is value, mask is not None, need_weights, state))
        return query, value if need_weights else None


def test_both_sides_get_the_same_call(agreed):
    """One array given twice stays one, in the jit too; torch is in inference and evaluation mode with all cores."""
    calls = []

    class FlaxWatcher(nnx.Module):
        def __call__(self, query, key, value, mask=None, need_weights=True):
            traced = isinstance(query, Tracer)
            calls.append((query is key, query is value, mask is not None, need_weights, traced))
            return jaxattn.AttentionOutput(query, value if need_weights else None)

    torch_module = TorchWatcher()
    query, value, mask = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32), np.ones((2, 2), bool)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report = timing.bench_pair(torch_module, FlaxWatcher(), (query, query, value), {"mask": mask}, **ONCE)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert torch_module.training and torch_module.inner.training and not torch.is_inference_mode_enabled()
    state = (True, False, False, conditions_file.cores())
    assert set(torch_module.calls) == {(True, False, True, weights, state) for weights in (False, True)}
    assert set(calls) == {(True, False, True, weights, traced) for weights in (False, True) for traced in (False, True)}
    assert [mode.name for mode in report.modes] == ["output", "output and weights"]
    [(given, options)] = agreed
    assert given[2] is given[3] is query and options == {"mask": mask}


def test_modules_without_weights_have_one_mode_and_peers_join_the_rounds(agreed):
    torch_module = torchref.SinusoidalPositionalEncoding(8)
    x = np.zeros((2, 3, 8), np.float32)
    peers = {"another": torchref.SinusoidalPositionalEncoding(8)}
    report = timing.bench_pair(torch_module, jaxattn.from_torch(torch_module), (x,), peers=peers, **ONCE)
    assert [mode.name for mode in report.modes] == ["output"]
    assert list(report.modes[0].timings) == [FLAX_EAGER, FLAX_JIT, TORCH_EAGER, "another"]
    assert set(report.modes[0].speedups()) == {FLAX_EAGER, TORCH_EAGER, "another"}


def test_further_jax_functions_are_timed_in_the_same_rounds_with_jax_arrays(agreed):
    given = []

    def another(x):
        given.append(isinstance(x, jax.Array))
        return x

    report = timing.bench_pair(*make_pair(), jax_peers={"another": another}, **ONCE)
    assert all(list(mode.timings) == [FLAX_EAGER, FLAX_JIT, "another", TORCH_EAGER] for mode in report.modes)
    assert given and all(given) and "another" in report.modes[0].speedups()


def test_the_weights_are_dropped_inside_the_jit(agreed, monkeypatch):
    """Output-only means that XLA sees no use of the weights."""
    kept = []
    real = compile_time

    def spy(call, module, arrays):
        kept.append(jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(call, module, arrays)))
        return real(call, module, arrays)

    monkeypatch.setattr(timing, "compile_time", spy)
    timing.bench_pair(*make_pair(), **ONCE)
    assert kept == [(3, 5, 4), ((3, 5, 4), (3, 5, 5))]
