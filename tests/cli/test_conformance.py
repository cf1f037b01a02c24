"""`jaxattn conformance`: the matrix, JSON, exit codes, and what is left out."""

import importlib
import json
import sys

import pytest
from typer.testing import CliRunner

from jaxattn import conformance
from jaxattn.cli import app
from jaxattn.conformance import CHECKS, Request, Result, run
from jaxattn.conformance.running import Verdict
from jaxattn.conformance.targets import make_target

FEW = {"empty_row", "causal_padding_weights", "dropout_per_element"}
command = importlib.import_module("jaxattn.cli.conformance")


def call(*arguments: str):
    return CliRunner().invoke(app, ["conformance", *arguments])


def made(name: str, verdict: Verdict, came: str = "") -> list[Result]:
    return [Result(name, check.id, check.question, check.expected, verdict, came) for check in CHECKS]


@pytest.fixture
def canned(monkeypatch):
    """Targets answer as told; equinox and keras are not installed."""
    verdicts: dict[str, tuple[Verdict, str]] = {
        "jaxattn": ("pass", ""),
        "jax.nn": ("differs", "uniform"),
        "flax.nnx": ("refused", "ValueError: no"),
    }

    def answer(name: str) -> list[Result]:
        if name not in verdicts:
            raise ImportError(f'the target {name} needs it: pip install "jaxattn[bench]".')
        return made(name, *verdicts[name])

    monkeypatch.setattr(command, "run", answer)
    return verdicts


def test_jaxattn_keeps_to_its_own_semantics():
    result = call("--target", "jaxattn", "--json")
    report = json.loads(result.stdout)
    assert [row for row in report["results"] if row["verdict"] != "pass"] == [] and result.exit_code == 0
    assert [row["check"] for row in report["results"]] == [check.id for check in CHECKS]
    assert set(report["results"][0]) == {"target", "check", "question", "expected", "verdict", "came"}
    assert report["left_out"] == {} and "jax" in report["conditions"]["versions"]


def test_flax_as_measured(monkeypatch):
    """Three that its source shows: a finite fill, a causal mask in the shape of the other, one draw for all heads."""
    monkeypatch.setattr("jaxattn.conformance.running.CHECKS", [check for check in CHECKS if check.id in FEW])
    found = {result.check: (result.verdict, result.came) for result in run("flax.nnx")}
    assert found["empty_row"] == ("differs", "uniform")
    assert found["causal_padding_weights"][0] == "refused"
    assert found["dropout_per_element"] == ("differs", "one draw for all examples and heads")


def test_all_shows_a_matrix_and_leaves_out_what_is_not_installed(canned):
    result = call()
    assert result.exit_code == 0, result.output
    head, *lines = [line for line in result.stdout.splitlines() if "empty" in line or "check " in line]
    assert head.split() == ["┃", "check", "┃", "expected", "┃", "jaxattn", "┃", "jax.nn", "┃", "flax.nnx", "┃"]
    assert "✗ uniform" in lines[0] and "refused" in lines[0] and "pass" in lines[0]
    assert "flax.nnx refused empty_row: ValueError: no" in result.stdout
    assert 'left out: the target keras needs it: pip install "jaxattn[bench]".' in result.stdout
    assert json.loads(call("--target", "all", "--json").stdout)["left_out"].keys() == {"equinox", "keras"}


def test_another_library_may_differ_and_jaxattn_may_not(canned):
    assert call("--target", "jax.nn", "--target", "flax.nnx").exit_code == 0
    for verdict in ("differs", "refused", "not offered"):
        canned["jaxattn"] = (verdict, "")
        assert call("--target", "jaxattn").exit_code == 1
        assert call("--target", "jax.nn").exit_code == 0


@pytest.mark.parametrize(
    ("target", "sentence"), [("torch", "unknown target 'torch'"), ("keras", "the target keras needs it")]
)
def test_a_target_that_is_unknown_or_missing_is_a_usage_error(canned, monkeypatch, target, sentence):
    monkeypatch.setenv("COLUMNS", "300")
    result = call("--target", "jaxattn", "--target", target)
    assert result.exit_code == 2 and sentence in result.stderr and not result.stdout


@pytest.mark.parametrize(("target", "module"), [("equinox", "equinox"), ("keras", "keras")])
def test_a_missing_library_names_the_extra(monkeypatch, target, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"the target {target} needs .*jaxattn\[bench\]"):
        make_target(target)


def test_a_target_says_which_argument_it_lacks():
    request = Request(None, None, None, lengths=[1])
    for name in ("flax.nnx", "keras", "equinox"):
        try:
            target = make_target(name)
        except ImportError:
            continue
        with pytest.raises(conformance.NotOffered, match="no lengths"):
            target.attend(request)
