"""Memory by XLA's plan, and the cost of a call: verdicts from made numbers, and tiny runs."""

import json

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from benchmarks import __main__ as entry
from benchmarks import memory, overhead
from benchmarks.systems import DENSE, OURS
from jaxattn.interleaved import COMPILED, Timing

MIB = 2**20


def row(kind: str, *sizes: float, system: str = OURS) -> dict:
    planned = {length: round(size * MIB) for length, size in zip((8192, 16384), sizes, strict=True)}
    return {"label": f"{system}, {kind}", "system": system, "causal": False, "kind": kind, "bytes": planned}


def test_memory_is_judged_at_the_longest_and_by_its_growth():
    rows = [row("forward", 96, 193), row("forward and backward", 100, 400), row("forward", 1e3, 1e4, system=DENSE)]
    verdicts = memory.judge(rows)
    assert [(round(verdict.value, 2), verdict.met) for verdict in verdicts] == [
        (193.0, False),
        (1.01, True),
        (400.0, True),
        (2.0, False),
    ]


def test_planned_memory_holds_the_weights_of_dense_attention():
    size = memory.planned_bytes(DENSE, 64, False, backward=False)
    assert size >= 8 * 64 * 64 * 4  # N · T · S · float32


@pytest.mark.usefixtures("dense")
def test_memory_writes_bytes_by_length(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(memory, "planned_bytes", lambda name, length, causal, backward: length * MIB)
    monkeypatch.setattr(memory, "small_parity", lambda name, causal: {"output": 1e-7})
    assert entry.main(["memory", "--quick", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["memory.json", "memory.png"]
    data = json.loads((tmp_path / "memory.json").read_text())
    assert data["results"][0]["bytes"] == {"64": 64 * MIB, "128": 128 * MIB}
    assert "jaxattn, full, forward, MiB by length: 64: 64.0, 128: 128.0" in capsys.readouterr().out


def test_a_system_that_differs_gets_no_memory_figure(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(memory.jax_function.__globals__["JAX_SYSTEMS"], OURS, lambda point: lambda q, k, v: q * 1.0)
    assert entry.main(["memory", "--quick", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []


def test_overhead_is_judged_by_time_and_by_the_bare_call():
    timings = {overhead.BARE: Timing((1e-4, 1e-4), 2), COMPILED: Timing((3e-4, 3e-4), 2)}
    assert [(verdict.value, verdict.met) for verdict in overhead.judge(timings)] == [
        (pytest.approx(3e-4), True),
        (pytest.approx(3.0), False),
    ]


@pytest.mark.usefixtures("once")
def test_overhead_writes_every_way_of_calling(monkeypatch, tmp_path):
    class Stack(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(3, 3, rngs=nnx.Rngs(0))])

        def __call__(self, x):
            return self.layers[0](x)

    monkeypatch.setattr(overhead, "make_model", lambda layers: (Stack(), jnp.ones((2, 3))))
    assert entry.main(["overhead", "--quick", "--out", str(tmp_path)]) == 0
    [result] = json.loads((tmp_path / "overhead.json").read_text())["results"]
    assert result["arrays"] == 2 and len(result["timings"]) == 5 and overhead.BARE not in result["over_bare"]
    assert (tmp_path / "overhead.png").stat().st_size > 1000


def test_the_model_has_a_dozen_arrays_a_layer():
    model = nnx.eval_shape(lambda: overhead.make_model(layers=2)[0])
    assert len(jax.tree.leaves(nnx.state(model))) == 24


def test_ways_that_differ_get_no_time(monkeypatch, tmp_path, capsys):
    ways = {overhead.BARE: lambda: jnp.zeros(3), COMPILED: lambda: jnp.full(3, jnp.nan)}
    monkeypatch.setattr(overhead, "make_model", lambda layers: (None, None))
    monkeypatch.setattr(overhead, "ways", lambda model, x: ways)
    assert entry.main(["overhead", "--quick", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and COMPILED in captured.err and list(tmp_path.iterdir()) == []
