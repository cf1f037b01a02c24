"""What reaches a terminal: nothing that it obeys, no markup of others, in any encoding; and a sign of life."""

import copy
import json
import pickle
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text
from typer.testing import CliRunner

from jaxattn import ConversionError
from jaxattn._text import visible
from jaxattn.cli import app, terminal
from jaxattn.convert.files import read_checkpoint, save_checkpoint

#: A title, a cleared screen, C1's control sequence, reversed text, a hidden joiner, an own line, markup, an emoji.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\u200d\r\nerror: no\u2028[/x][bold]:smile:\x7f"
ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj\u200d"
COMMANDS = ["demo", "convert", "inspect", "parity", "bench", "explain", "conformance"]


def run(*arguments: object, charset: str = "utf-8"):
    return CliRunner(charset=charset).invoke(app, [str(argument) for argument in arguments])


def assert_tame(result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for text in (result.stdout, result.stderr):
        obeyed = [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
        assert obeyed == [], text


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Files whose names, tensors and texts are hostile, and fit a module or not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    rng = np.random.default_rng(0)
    good = {
        f"W_{name}.{kind}": rng.standard_normal((2, 2)[: 2 - (kind == "bias")])
        for name in "qkv"
        for kind in ("weight", "bias")
    }
    good = {name: array.astype(np.float32) for name, array in good.items()}
    save_checkpoint({f"{HOSTILE}.{name}": array for name, array in good.items()}, "good.safetensors")
    save_checkpoint({**good, HOSTILE: np.full(2, np.nan, np.float32)}, "bad.safetensors")
    written = {"format": "flax", "jaxattn": "0", "module": HOSTILE, "settings": json.dumps({HOSTILE: HOSTILE})}
    save_checkpoint(good, "flax.safetensors", metadata={**written, "torch_names": "{}"})
    Path("config.json").write_text(json.dumps({"model_type": HOSTILE}))
    return tmp_path


MODULE = ["--module", "scaled_dot_product"]
CALLS = [
    ["inspect", "good.safetensors"],
    ["inspect", "good.safetensors", "--all"],
    ["inspect", "good.safetensors", "--json"],
    ["inspect", "bad.safetensors"],
    ["inspect", "flax.safetensors"],
    ["inspect", HOSTILE],
    ["convert", "good.safetensors", "--to", "a.safetensors", *MODULE, "--prefix", HOSTILE],
    ["convert", "good.safetensors", "--to", "a.safetensors", *MODULE],
    ["convert", "bad.safetensors", "--to", "a.safetensors", *MODULE],
    ["convert", "bad.safetensors", "--to", HOSTILE, *MODULE],
    ["convert", "bad.safetensors", "--to", "a.safetensors", *MODULE, "--rename", HOSTILE],
    ["convert", "flax.safetensors", "--to", "a.safetensors"],
    ["convert", "flax.safetensors", "--to", "a.safetensors", *MODULE],
    ["parity", "good.safetensors", *MODULE],
    ["parity", "flax.safetensors", "--against", HOSTILE],
    ["parity", "bad.safetensors", "--family", "bert"],
    ["parity", "bad.safetensors", "--family", HOSTILE],
    ["parity", "bad.safetensors", *MODULE, "--html", HOSTILE + "/a"],
    ["parity", "bad.safetensors", *MODULE, f"--{HOSTILE}"],
    ["bench", HOSTILE],
    ["bench", "my_attn", "--dtype", HOSTILE],
    ["bench", "my_attn", "--plot", HOSTILE],
    ["explain", "scaled_dot_product", "--embed-dim", "2", "--text", HOSTILE],
    ["explain", "scaled_dot_product", "--embed-dim", "2", "--text", HOSTILE, "--json"],
    ["explain", "--checkpoint", HOSTILE],
    ["explain", "--checkpoint", "."],
    ["explain", "my_attn", "--plot", HOSTILE],
    ["conformance", "--target", HOSTILE],
    ["demo", "--out", HOSTILE + "/a"],
    [HOSTILE],
    *([command, f"--{HOSTILE}"] for command in COMMANDS),
]


@pytest.mark.usefixtures("place")
def test_nothing_that_a_terminal_obeys_gets_through_any_command():
    said = ""
    for call in CALLS:
        result = run(*call)
        assert_tame(result)
        said += result.stdout + result.stderr
    assert said.count(ESCAPED) > 20
    assert not [line for line in said.splitlines() if line.startswith("error: no")]


def test_every_message_of_a_conversion_error_is_tame():
    error = ConversionError(f"`{HOSTILE}` is odd", [f"missing `{HOSTILE}`"])
    for each in (error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        lines = str(each).split("\n")
        assert len(lines) == 2 and lines[1] == f"  - {each.problems[0]}" and ESCAPED in each.headline
        assert visible(str(each)) == str(each) and r"\r\nerror: no\u2028[/x]" in lines[1]


def test_what_is_readable_stays():
    text = "naïve Größe — 模型 ½ 🙂 [x]\n  ok"
    assert visible(text) == text


def test_markup_in_a_name_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    result = run("explain", "scaled_dot_product", "--embed-dim", 2, "--plot", "[/x].png")
    assert result.exit_code == 0 and result.stderr == "Wrote [/x].png\n"


@pytest.mark.usefixtures("place")
def test_any_encoding_will_do():
    calls = [[command, "--help"] for command in COMMANDS]
    calls += [["--help"], ["explain"], ["explain", "scaled_dot_product", "--embed-dim", 2, "--text", "ö 模"]]
    calls += [["inspect", "bad.safetensors"], ["inspect", "ö 模.pt"], ["bench", "ö 模"]]
    for call in calls:
        for charset in ("ascii", "latin-1"):
            result = run(*call, charset=charset)
            assert result.exception is None or isinstance(result.exception, SystemExit), (call, result.exception)
            assert (result.stdout + result.stderr).strip() and (charset == "latin-1" or result.stdout.isascii())
    assert "q k^T * scale" in run("explain", "scaled_dot_product", "--embed-dim", 2, charset="ascii").stdout


@pytest.mark.parametrize("charset", ["ascii", "utf-8"])
def test_a_name_that_is_no_unicode_can_be_shown(charset):
    assert r"\udcff" in run("inspect", "a\udcff.pt", charset=charset).stderr


def test_a_line_now_and_then_where_standard_error_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "INTERVAL", 0.05)
    with terminal.progress("Reading") as show:
        time.sleep(0.2)
        show("Writing", 3, 7)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Reading … 0 s" and lines[-1] == "Writing, 3 of 7 … 0 s" and 4 <= len(lines) <= 8
    with terminal.progress("quick"):
        pass
    assert capsys.readouterr().err == ""


def test_a_cell_is_as_wide_as_what_is_shown():
    assert terminal.plain("a\x1b[2J").cell_len == len(r"a\x1b[2J") and terminal.plain("x") == Text("x")


def test_converted_files_say_hostile_paths_and_read_them(place):
    """Metadata is JSON: any path comes back as it was."""
    source = read_checkpoint("bad.safetensors")
    weights = {name: source[name] for name in source if name != HOSTILE}
    save_checkpoint(weights, place / f"{HOSTILE.replace('/', '')}.safetensors")
    result = run("convert", f"{HOSTILE.replace('/', '')}.safetensors", "--to", "a.safetensors", *MODULE)
    assert result.exit_code == 0, result.stderr
    back = run("parity", "a.safetensors", "--steps", 0, "--length", 2, "--no-html", "--json")
    assert_tame(back)
    assert back.exit_code == 0 and any(r"\x1b]0;owned" in note for note in json.loads(back.stdout)["notes"])
