"""`python -m benchmarks`: dispatch, what a suite writes, and that a failed parity check writes nothing."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks import minilm, module, op
from benchmarks.gate import exact_part
from jaxattn.interleaved import COMPILED, FLAX_EAGER, FLAX_JIT, TORCH_EAGER, Timing
from jaxattn.timing import ParityFailure
from jaxattn.variants import multihead_torch


class Verdict:
    """A parity report that nothing was computed for."""

    def __init__(self, ok: bool):
        self.ok = ok

    def to_json(self) -> dict:
        row = {"kind": "output", "error": 2e-7, "torch_error": 3e-7, "error_float64": 1e-16}
        worse = {**row, "error": 4e-7}
        return {"ok": self.ok, "dtype": "float32", "rows": [row, worse, {"kind": "gradient", "error": 1.0}]}


@pytest.fixture
def short(monkeypatch):
    """One module, and parity not computed."""
    monkeypatch.setattr(module, "NAMES", ("sinusoidal",))
    monkeypatch.setattr(module, "QUICK", {"rounds": 1, "min_block_s": 0.0, "sleep_s": 0.0})
    monkeypatch.setattr("jaxattn.parity.compare", lambda *given, **options: Verdict(True))
    timings = {name: Timing((0.001,), 1) for name in (COMPILED, "flax.nnx.MultiHeadAttention")}
    monkeypatch.setattr(module, "measure_peers", lambda sizes, how: op.timed(timings, COMPILED))


def test_without_a_suite_the_suites_are_listed(capsys):
    assert entry.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name}" in listed for name in entry.SUITES)
    assert {
        "op",
        "op_grad",
        "sweep",
        "memory",
        "overhead",
        "conformance",
        "minilm",
        "module",
        "encoder",
        "device",
        "load",
        "table",
    } == set(entry.SUITES)
    assert entry.main(["nothing"]) == 2
    assert "unknown suite 'nothing'" in capsys.readouterr().err


def test_the_rest_of_the_command_line_goes_to_the_suite(monkeypatch):
    given = []
    monkeypatch.setattr(module, "main", lambda argv: given.append(argv))
    assert entry.main(["module", "--quick"]) == 0
    assert given == [["--quick"]]


def test_module_writes_results_and_plot(short, tmp_path, capsys):
    assert entry.main(["module", "--quick", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["module.json", "module.png"]
    data = json.loads((tmp_path / "module.json").read_text())
    assert data["suite"] == "module" and data["conditions"]["quick"] is True and data["conditions"]["rounds"] == 1
    [result] = data["results"]
    assert result["label"] == result["module"] == "SinusoidalPositionalEncoding"
    assert result["counterpart"] == "torchref.SinusoidalPositionalEncoding"
    assert result["parity"] == {
        "ok": True,
        "dtype": "float32",
        "float64_error": 1e-16,
        "error": 4e-7,
        "torch_error": 3e-7,
    }
    assert result["sizes"]["embed_dim"] == module.TINY["embed_dim"]
    assert list(result["modes"][0]["timings"]) == [FLAX_EAGER, FLAX_JIT, TORCH_EAGER]
    assert data["peers"]["ratio_over"] == {"flax.nnx.MultiHeadAttention": {"median": 1.0, "low": 1.0, "high": 1.0}}
    printed = capsys.readouterr().out
    assert "SinusoidalPositionalEncoding: parity ok, float32 error 4.0e-07" in printed
    assert "ours is 1.0× as fast" in printed


def test_a_quick_run_writes_nothing_unless_told_where(short, monkeypatch):
    monkeypatch.setattr("benchmarks.conditions.plot_speed", lambda *given, **how: pytest.fail("wrote"))
    assert entry.main(["module", "--quick"]) == 0


@pytest.mark.parametrize("suite", [module, minilm])
def test_a_parity_failure_prints_and_writes_no_number(monkeypatch, tmp_path, capsys, suite):
    def fail(*given, **how):
        raise ParityFailure("Module", "where they differ")

    monkeypatch.setattr(suite, "bench_pair", fail)
    monkeypatch.setattr(minilm, "models", lambda directory: (None, None, None))
    monkeypatch.setattr(minilm, "check_alike", lambda *given: None)
    monkeypatch.setattr("jaxattn.compile", lambda module, **options: None)
    assert suite.main(["--quick", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "where they differ" in captured.err and list(tmp_path.iterdir()) == []


def test_all_named_variants_are_known_and_documented_sizes_fit():
    for name in module.NAMES:
        variant = module.VARIANTS[name]
        sizes = variant.sizes(**{size: module.SIZES[size] for size in variant.size_names if size in module.SIZES})
        assert sizes.get("embed_dim", 256) == 256


@pytest.mark.parametrize(("batch", "length"), minilm.SHAPES)
def test_sentences_are_ragged_and_well_formed(batch, length):
    ids, mask = minilm.sentences(batch, length)
    assert ids.shape == mask.shape == (batch, length)
    lengths = mask.sum(axis=1)
    assert lengths[0] == length and len(set(lengths)) == batch and lengths.min() >= length // 2
    assert (np.diff(mask, axis=1) <= 0).all()
    assert (ids[:, 0] == minilm.CLS).all() and (ids[mask == 0] == minilm.PAD).all()
    assert ((ids == minilm.SEP).sum(axis=1) == 1).all()
    assert (ids[np.arange(batch), lengths - 1] == minilm.SEP).all()


def test_inside_the_context_models_call_flax_attention_and_afterwards_ours():
    ours, call = multihead_torch.dot_product_attention, {"bias": None, "empty_row": "zero", "dropout_rate": 0.0}
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 5, 3, 4)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3]])[:, None, None]
    with minilm.nnx_attention():
        attend = multihead_torch.dot_product_attention
        assert attend is not ours
        output = jax.jit(lambda *arrays: attend(*arrays, mask=jnp.asarray(mask), **call).output)(q, k, v)
    assert multihead_torch.dot_product_attention is ours
    for example, head in ((0, 1), (1, 2)):
        part = exact_part([q, k, v, q], (example, head), mask[example], backward=False)
        np.testing.assert_allclose(output[example, :, head], part.results[0][:, 0], atol=1e-6)


def test_a_jax_peer_that_differs_stops_minilm():
    def model(ids, attention_mask):
        return SimpleNamespace(last_hidden_state=ids * 1.0)

    ids = np.ones((1, 3))
    minilm.check_alike(model, {"same": lambda ids, attention_mask: ids + 1e-6}, ids, ids)
    for wrong in (1e-3, np.nan):
        with pytest.raises(ParityFailure, match="other failed") as failure:
            minilm.check_alike(model, {"other": lambda ids, attention_mask, wrong=wrong: ids + wrong}, ids, ids)
        assert "differs from the model" in failure.value.report


def test_minilm_is_judged_at_one_shape():
    seconds = {COMPILED: 0.1, TORCH_EAGER: 0.12, minilm.NNX_ATTENTION: 0.13}
    timings = {name: Timing((value, value), 2) for name, value in seconds.items()}
    assert minilm.judge({(1, 8): timings}) == []
    verdicts = minilm.judge({minilm.TARGET_SHAPE: timings})
    assert [(round(verdict.value, 3), verdict.met) for verdict in verdicts] == [(1.2, True), (1.3, False)]
