"""What the suite writes, and README's table from it."""

import json

import pytest

from benchmarks import __main__ as entry
from benchmarks import conformance, render_conformance
from jaxattn.conformance import CHECKS, Result
from jaxattn.conformance.running import Verdict


def made(name: str, verdict: Verdict, came: str) -> list[Result]:
    return [Result(name, check.id, check.question, check.expected, verdict, came) for check in CHECKS[:2]]


@pytest.fixture
def answers(monkeypatch):
    given: dict[str, tuple[Verdict, str]] = {
        "jaxattn": ("pass", ""),
        "jax.nn": ("differs", "uniform"),
        "flax.nnx": ("refused", "ValueError: no"),
        "equinox": ("not offered", "no mask"),
    }

    def answer(name: str) -> list[Result]:
        if name not in given:
            raise ImportError("the target keras needs Keras.")
        return made(name, *given[name])

    monkeypatch.setattr(conformance, "run", answer)
    monkeypatch.setattr(conformance, "QUICK", tuple(conformance.TARGETS))
    return given


def test_every_verdict_has_its_sign(answers, tmp_path, capsys):
    assert entry.main(["conformance", "--quick", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "conformance.json").read_text())
    assert data["left_out"] == {"keras": "the target keras needs Keras."}
    assert "jax.nn: 2 differs" in capsys.readouterr().out
    text = render_conformance.render_conformance(data)
    assert "| what is asked | expected | jaxattn | jax.nn | flax.nnx | equinox |" in text
    assert f"| {CHECKS[0].question} | {CHECKS[0].expected} | ✓ | ✗ uniform | refused | – |" in text
    assert "Left out: the target keras needs Keras. Measured on:" in text


@pytest.mark.parametrize("verdict", ["differs", "refused", "not offered"])
def test_nothing_is_written_if_ours_differs(answers, tmp_path, capsys, verdict):
    answers["jaxattn"] = (verdict, "uniform")
    assert entry.main(["conformance", "--quick", "--out", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    assert f"{CHECKS[0].id}: expected {CHECKS[0].expected}, got uniform" in capsys.readouterr().err
