"""`python -m benchmarks`: dispatch, what a suite writes, and that a failed parity check writes nothing."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as entry
from benchmarks import minilm, module
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER
from jaxattn.timing import ParityFailure


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


def test_without_a_suite_the_suites_are_listed(capsys):
    assert entry.main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("module", "minilm", "load", "table"))
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
    assert "SinusoidalPositionalEncoding: parity ok, float32 error 4.0e-07" in capsys.readouterr().out


def test_a_quick_run_writes_nothing_unless_told_where(short, monkeypatch):
    monkeypatch.setattr("benchmarks.conditions.plot_speed", lambda *given, **how: pytest.fail("wrote"))
    assert entry.main(["module", "--quick"]) == 0


@pytest.mark.parametrize("suite", [module, minilm])
def test_a_parity_failure_prints_and_writes_no_number(monkeypatch, tmp_path, capsys, suite):
    def fail(*given, **how):
        raise ParityFailure("Module", "where they differ")

    monkeypatch.setattr(suite, "bench_pair", fail)
    monkeypatch.setattr(minilm, "models", lambda directory: (None, None, None))
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
