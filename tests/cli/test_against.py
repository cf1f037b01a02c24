"""A converted file against its original: what `convert` records, what `parity` takes, and the order of names."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from jaxattn.cli import app
from jaxattn.cli.recognise import known_modules
from jaxattn.cli.variants import VARIANTS
from jaxattn.convert.files import read_checkpoint, save_checkpoint
from jaxattn.convert.flax_layout import source_shapes

HEADS = ["--module", "multi_head", "--num-heads", "2"]
QUICK = ["--batch", "2", "--length", "3", "--steps", "0", "--no-html", "--json"]


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """a.pt, a state dict below a key and a prefix, converted to b.safetensors; and wrong.safetensors."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    weights = VARIANTS["multi_head"].torch(embed_dim=6, num_heads=2).state_dict()
    tensors = {f"m.{name}": weights[name] for name in sorted(weights, reverse=True)}
    torch.save({"net": tensors, "other": {"x": torch.ones(2)}}, "a.pt")
    assert run("convert", "a.pt", "--to", "b.safetensors", *HEADS, "--key", "net", "--prefix", "m").exit_code == 0
    converted = read_checkpoint("b.safetensors")
    wrong = dict(converted) | {"W_o.kernel": converted["W_o.kernel"].T.copy()}
    save_checkpoint(wrong, "wrong.safetensors", metadata=converted.metadata)
    return tmp_path


def test_the_original_feeds_pytorch(place):
    """A matrix that lies the other way in the converted file, which the file alone can't tell."""
    for options in ([], ["--against", "a.pt"]):
        result = run("parity", "b.safetensors", *QUICK, *options)
        assert result.exit_code == 0 and any("a.pt`" in note for note in json.loads(result.stdout)["notes"])
        report = json.loads(run("parity", "wrong.safetensors", *QUICK, *options).stdout)
        assert not report["ok"] and report["trace"]["first"] == "W_o" and "transposed" in report["trace"]["cause"]
    itself = run("parity", "wrong.safetensors", *QUICK, "--against", "wrong.safetensors")
    assert itself.exit_code == 0 and any("not its conversion" in note for note in json.loads(itself.stdout)["notes"])


def test_the_original_is_found_where_both_files_went_and_missed_where_it_is_gone(place):
    Path("there").mkdir()
    Path("b.safetensors").rename("there/b.safetensors")
    result = run("parity", "there/b.safetensors", *QUICK)
    assert result.exit_code == 1 and not result.stdout
    assert "was converted from `" in result.stderr and "does not exist: say where it is by --against" in result.stderr
    assert run("parity", "there/b.safetensors", *QUICK, "--against", "a.pt").exit_code == 0
    Path("a.pt").rename("there/a.pt")
    assert run("parity", "there/b.safetensors", *QUICK).exit_code == 0


def test_an_original_that_does_not_fit_is_refused(place):
    save_checkpoint({"x": np.ones(2, np.float32)}, "x.safetensors")
    torch.save({"one": {"x": torch.ones(2)}, "net": torch.load("a.pt")["net"]}, "c.pt")
    assert "missing `W_o.bias`" in run("parity", "b.safetensors", *QUICK, "--against", "x.safetensors").stderr
    assert run("parity", "b.safetensors", *QUICK, "--against", "c.pt").exit_code == 0
    wrong_key = run("parity", "b.safetensors", *QUICK, "--against", "c.pt", "--against-key", "one")
    assert wrong_key.exit_code == 1 and "missing `W_o.bias`" in wrong_key.stderr


def test_a_file_in_pytorchs_layout_against_another(place):
    tensors = dict(read_checkpoint("a.pt", key="net"))
    save_checkpoint(tensors, "same.safetensors")
    save_checkpoint({**tensors, "m.W_o.weight": tensors["m.W_o.weight"] + 1}, "changed.safetensors")
    options = [*HEADS, "--prefix", "m", *QUICK, "--against", "a.pt", "--against-key", "net"]
    assert run("parity", "same.safetensors", *options).exit_code == 0
    assert run("parity", "changed.safetensors", *options).exit_code == 1


@pytest.mark.parametrize("damage", ["{", "[]", '{"path": 3, "key": null, "prefix": "", "rename": {}, "order": []}'])
def test_a_damaged_record_is_said_to_be(damage, place):
    converted = read_checkpoint("b.safetensors")
    save_checkpoint(dict(converted), "d.safetensors", metadata={**converted.metadata, "original": damage})
    for call in (["parity", "d.safetensors", *QUICK], ["convert", "d.safetensors", "--to", "e.pt"]):
        result = run(*call)
        assert result.exit_code == 1 and "its text is damaged" in result.stderr


def test_a_file_that_names_no_original_is_said_to_be_compared_with_itself(place):
    converted = read_checkpoint("b.safetensors")
    metadata = {name: text for name, text in converted.metadata.items() if name != "original"}
    save_checkpoint(dict(converted), "d.safetensors", metadata=metadata)
    result = run("parity", "d.safetensors", *QUICK)
    assert result.exit_code == 0 and any("not its conversion" in note for note in json.loads(result.stdout)["notes"])


def test_the_order_of_names_survives(place):
    assert run("convert", "b.safetensors", "--to", "back.pt").exit_code == 0
    assert list(torch.load("back.pt")) == list(torch.load("a.pt")["net"])
    save_checkpoint(dict(read_checkpoint("back.pt")), "c.safetensors")
    assert run("convert", "c.safetensors", "--to", "d.safetensors", *HEADS, "--prefix", "m").exit_code == 0
    assert run("convert", "d.safetensors", "--to", "e.safetensors").exit_code == 0
    assert list(read_checkpoint("e.safetensors")) == list(read_checkpoint("c.safetensors"))


def test_the_original_of_a_family(tmp_path, monkeypatch):
    """Its configuration comes from the converted file: the original's directory may have lost its own."""
    monkeypatch.chdir(tmp_path)
    sizes = {"vocab_size": 31, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 7, "max_position_embeddings": 11, "type_vocab_size": 2}
    rng = np.random.default_rng(0)
    shapes = source_shapes(known_modules()["bert"].build({**sizes, "add_pooling_layer": False}))
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save_checkpoint(weights, "model.safetensors")
    Path("config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    assert run("convert", "model.safetensors", "--to", "b.safetensors", "--family", "bert").exit_code == 0
    Path("config.json").unlink()
    result = run("parity", "b.safetensors", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert any("model.safetensors`" in note for note in json.loads(result.stdout)["notes"])
