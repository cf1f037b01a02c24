"""The command line as a whole: help, exit codes, and what a user sees when the input is wrong."""

import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from jaxattn.cli import app
from jaxattn.cli.errors import reporting
from jaxattn.convert.files import save_checkpoint

COMMANDS = ["demo", "convert", "inspect", "parity", "bench", "explain", "conformance"]


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def heads(**others: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = ("Wq", "Wk", "Wv", "W_o")
    weights = {f"{name}.weight": rng.standard_normal((6, 6)).astype(np.float32) for name in names}
    return {**weights, **{f"{name}.bias": np.ones(6, np.float32) for name in names}, **others}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b"" for p in directory.rglob("*")}


class Evil:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def truncated(path: Path) -> None:
    save_checkpoint(heads(), path)
    path.write_bytes(path.read_bytes()[:-40])


def truncated_zip(path: Path) -> None:
    torch.save({"a": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-60])


def overlapping(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


def adapter(path: Path) -> None:
    path.mkdir()
    (path / "adapter_config.json").write_text("{}")
    save_checkpoint({"a": np.ones(1)}, path / "adapter_model.safetensors")


def outside(path: Path) -> None:
    path.mkdir()
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))


def torchscript(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/constants.pkl", b"")
        archive.writestr("m/data.pkl", b"")


FILES = {  # name → (how it is made, what the sentence says)
    "missing.safetensors": (lambda path: None, "does not exist"),
    "empty.safetensors": (lambda path: path.touch(), "is empty (0 bytes)"),
    "pointer.safetensors": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git-lfs pointer",
    ),
    "truncated.safetensors": (truncated, "is truncated"),
    "truncated.pt": (truncated_zip, "truncated zip archive"),
    "header.safetensors": (
        lambda path: path.write_bytes(struct.pack("<Q", 10**6) + b"{}"),
        "a header of 1000000 bytes",
    ),
    "overlapping.safetensors": (overlapping, "damaged safetensors file"),
    "page.bin": (lambda path: path.write_text("<!DOCTYPE html>"), "is a web page"),
    "model.gguf": (lambda path: path.write_bytes(b"GGUF" + bytes(90)), "GGUF"),
    "script.pt": (torchscript, "TorchScript"),
    "whole.pt": (lambda path: torch.save(torch.nn.Linear(2, 2), path), "whole pickled module"),
    "evil.pt": (lambda path: torch.save({"a": Evil(path.parent / "harm")}, path), "could run code"),
    "evil.pkl": (lambda path: path.write_bytes(pickle.dumps(Evil(path.parent / "harm"))), "nothing in it was run"),
    "bare.pt": (lambda path: torch.save(torch.ones(3), path), "one bare tensor"),
    "list.pt": (lambda path: torch.save([torch.ones(3)], path), "holds a list"),
    "integers.pt": (lambda path: torch.save({1: torch.ones(3)}, path), "not a string"),
    "optimizer.pt": (lambda path: torch.save({"state": {}, "param_groups": []}, path), "state of an optimizer"),
    "several.pt": (lambda path: torch.save({n: {"w": torch.ones(1)} for n in "ab"}, path), "several state dicts"),
    "complex.pt": (lambda path: torch.save({"a": torch.ones(3, dtype=torch.complex64)}, path), "is complex"),
    "sparse.pt": (lambda path: torch.save({"a": torch.eye(3).to_sparse()}, path), "to_dense"),
    "meta.pt": (lambda path: torch.save({"a": torch.ones(3, device="meta")}, path), "meta tensor"),
    "quantised.safetensors": (lambda path: save_checkpoint({"q.qweight": np.ones(1)}, path), "quantised checkpoint"),
    "lora.safetensors": (lambda path: save_checkpoint({"q.lora_A.weight": np.ones(1)}, path), "PEFT (LoRA) adapter"),
    "flat.safetensors": (lambda path: save_checkpoint({"_flat_param": np.ones(1)}, path), "FSDP"),
    "adapter": (adapter, "PEFT adapter"),
    "outside": (outside, "outside its own directory"),
    "nothing": (lambda path: path.mkdir(), "holds no checkpoint"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_checkpoint(name, tmp_path):
    make, sentence = FILES[name]
    make(tmp_path / name)
    before = contents(tmp_path)
    module = ["--module", "multi_head", "--num-heads", "2"]
    for rest in (["inspect"], ["parity", *module], ["convert", "--to", tmp_path / "out.safetensors", *module]):
        result = run(rest[0], tmp_path / name, *rest[1:])
        assert_one_sentence(result, sentence)
        assert contents(tmp_path) == before


def assert_one_sentence(result, sentence: str, code: int = 1) -> None:
    assert result.exit_code == code and isinstance(result.exception, SystemExit), result.output
    assert sentence in result.stderr and "Traceback" not in result.stderr, result.stderr
    assert code == 2 or result.stderr.startswith("error: ")
    assert not result.stdout


HEADS = ["--module", "multi_head", "--num-heads", "2"]
OPTIONS = {  # what is wrong → (options, exit code, what the sentence says)
    "wrong size": ([*HEADS, "--embed-dim", "8"], 1, "`Wq.weight` has shape (6, 6), expected (8, 8)"),
    "a size against the file": (
        ["--module", "multi_head_cross", "--num-heads", "2", "--embed-dim", "8"],
        1,
        "`Wq.weight` has shape (6, 6), expected (8, 8)",
    ),
    "heads that do not divide": (["--module", "multi_head", "--num-heads", "4"], 1, "must divide `embed_dim`"),
    "other module": (["--module", "scaled_dot_product"], 1, "missing `W_q.weight`"),
    "nothing below prefix": ([*HEADS, "--prefix", "model"], 1, "missing `Wq.weight`"),
    "prefix of a family": (["--family", "bert", "--prefix", "x"], 1, "nothing below the prefix `x.`"),
    "renamed onto another": ([*HEADS, "--rename", "Wk=Wq"], 1, "both come to `Wq.weight`"),
    "no key in safetensors": ([*HEADS, "--key", "model"], 1, "leave --key model out"),
    "other weights for a family": (["--family", "bert"], 1, "missing `embeddings.word_embeddings.weight`"),
    "other model_type": (["--family", "bert", "--config", "gpt.json"], 1, "this is a 'gpt2', not a 'bert'"),
    "no such config": (["--family", "bert", "--config", "none.json"], 1, "`none.json` does not exist"),
    "unknown option of a model": (["--family", "bert", "--config", "odd.json"], 1, "`rotary_dim` is unknown"),
    "unknown module": (["--module", "nope"], 2, "multi_head_cross"),
    "unknown family": (["--family", "nope"], 2, "known are bert"),
    "neither": ([], 2, "--module"),
    "both": ([*HEADS, "--family", "bert"], 2, "--family"),
    "size missing": (["--module", "multi_head"], 2, "needs --num-heads"),
    "size of another module": ([*HEADS, "--num-layers", "2"], 2, "`num_layers` is no size"),
    "size of a family": (["--family", "bert", "--embed-dim", "4"], 2, "config.json"),
    "size of 0": (["--module", "multi_head", "--num-heads", "0"], 2, "--num-heads"),
    "rename without =": ([*HEADS, "--rename", "a"], 2, "old=new"),
    "unknown option": ([*HEADS, "--nope"], 2, "--nope"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")  # so that no sentence is broken into lines
    save_checkpoint(heads(), "a.safetensors")
    Path("config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 1}))
    Path("gpt.json").write_text(json.dumps({"model_type": "gpt2"}))
    Path("odd.json").write_text(json.dumps({"model_type": "bert", "rotary_dim": 3}))
    return tmp_path


@pytest.mark.parametrize("wrong", OPTIONS)
def test_options_that_do_not_fit(wrong, place):
    options, code, sentence = OPTIONS[wrong]
    before = contents(place)
    for rest in (["parity"], ["convert", "--to", "out.safetensors"]):
        assert_one_sentence(run(rest[0], "a.safetensors", *rest[1:], *options), sentence, code)
        assert contents(place) == before


@pytest.mark.parametrize(
    ("to", "code", "sentence"),
    [
        ("there.safetensors", 1, "exists: pass --force"),
        ("folder", 1, "is a directory"),
        ("none/out.safetensors", 1, "The directory `none` does not exist"),
        ("out.pt", 2, "is written as .safetensors"),
        ("out.txt", 2, "is written as .safetensors"),
        (None, 2, "--to"),
    ],
)
def test_a_destination_that_cannot_be_written(to, code, sentence, place):
    Path("there.safetensors").write_text("mine")
    Path("folder").mkdir()
    before = contents(place)
    result = run("convert", "a.safetensors", *HEADS, *(["--to", to] if to else []))
    assert_one_sentence(result, sentence, code)
    assert contents(place) == before


@pytest.mark.parametrize(
    ("damage", "code", "sentence"),
    [
        ({"settings": "{"}, 1, "is damaged"),
        ({"torch_names": '{"a": 3}'}, 1, "is damaged"),
        ({"module": "newer"}, 1, "says that it holds newer"),
        ({"settings": '{"embed_dim": "6"}'}, 1, "can't be built"),
        ({"settings": '{"embed_dim": 8, "num_heads": 2}'}, 1, "the module's parameter float32 (8, 8)"),
        ({"format": "pt"}, 2, "--module"),
        ({}, 2, "leave all options away"),
    ],
)
def test_a_converted_file_whose_text_was_changed(damage, code, sentence, place):
    from jaxattn.convert.files import read_checkpoint

    assert run("convert", "a.safetensors", "--to", "b.safetensors", *HEADS).exit_code == 0
    written = read_checkpoint("b.safetensors")
    save_checkpoint(dict(written), "c.safetensors", metadata={**written.metadata, **damage})
    options = [] if damage else HEADS
    assert_one_sentence(run("convert", "c.safetensors", "--to", "d.safetensors", *options), sentence, code)
    assert not Path("d.safetensors").exists()


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0 and all(f" {name} " in result.stdout for name in COMMANDS)
    assert run().exit_code == 2 and run("nope").exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = run(name, "--help")
    assert result.exit_code == 0 and f"Usage: jaxattn {name}" in result.stdout.replace("root", "jaxattn")


def test_options_for_the_sizes_of_every_variant():
    from jaxattn.cli.variants import VARIANTS

    names = {name for variant in VARIANTS.values() for name in variant.size_names}
    for command in ("convert", "parity", "bench", "explain"):
        text = run(command, "--help").stdout
        assert all(f"--{name.replace('_', '-')}" in text for name in names)


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError, NotImplementedError, ImportError])
def test_expected_errors_are_one_sentence(error, capsys):
    def command():
        raise error("what [bold]must[/] hold")

    with pytest.raises(typer.Exit) as caught:
        reporting(command)()
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == f"error: {error.__name__}: what [bold]must[/] hold\n"


@pytest.mark.parametrize(
    "error", [TypeError, KeyError, AssertionError, RuntimeError, KeyboardInterrupt, BrokenPipeError]
)
def test_other_errors_are_shown_as_they_are(error):
    def command():
        raise error

    with pytest.raises(error):
        reporting(command)()


def test_starting_is_light(tmp_path):
    """Neither PyTorch nor what draws is imported for the help, nor for a file that isn't there."""
    code = (
        "import sys\nfrom jaxattn.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print(*({'torch', 'torchref', 'matplotlib', 'transformers'} & set(sys.modules)), sep=',')"
    )
    for arguments, returned in ((["--help"], 0), (["inspect", str(tmp_path / "none")], 1)):
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300)
        assert result.returncode == returned and result.stdout.splitlines()[-1] == "", result.stdout + result.stderr
