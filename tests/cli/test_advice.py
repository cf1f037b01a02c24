"""What a command says to somebody who is nearly right, and what its help looks like."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import jaxattn
from jaxattn.cli import app
from jaxattn.cli.recognise import known_modules, recognise
from jaxattn.cli.variants import VARIANTS
from jaxattn.convert.files import save_checkpoint
from jaxattn.convert.flax_layout import source_shapes
from jaxattn.models import from_pretrained

SMALL = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SMALL |= {"intermediate_size": 13, "max_position_embeddings": 17, "type_vocab_size": 3}


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    names = ("Wq", "Wk", "Wv", "W_o")
    weights = {f"{name}.weight": np.ones((6, 6), np.float32) for name in names}
    save_checkpoint(weights | {f"{name}.bias": np.ones(6, np.float32) for name in names}, "heads.safetensors")
    save_checkpoint({f"m.{name}": array for name, array in weights.items()}, "part.safetensors")


def test_the_version_is_the_packages():
    result = run("--version")
    assert result.exit_code == 0 and result.stdout == f"jaxattn {jaxattn.__version__}\n"
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{jaxattn.__version__}"' in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--module", "encoder", "--num-heads", "2"], "Its weights fit --module multi_head --num-heads … or --module"),
        (["--family", "bert", "--config", "bert.json"], "Its weights fit --module multi_head --num-heads …"),
    ],
)
def test_weights_of_another_module_are_said_to_be(options, sentence):
    Path("bert.json").write_text(json.dumps({"model_type": "bert", **SMALL}))
    for call in (["convert", "heads.safetensors", "--to", "a.safetensors"], ["parity", "heads.safetensors"]):
        assert sentence in run(*call, *options).stderr


def test_the_right_module_with_a_wrong_size_is_not_blamed():
    result = run("parity", "heads.safetensors", "--module", "multi_head", "--num-heads", 2, "--embed-dim", 8)
    assert result.exit_code == 1 and "Its weights fit" not in result.stderr


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (["parity", "heads.safetensors", "--module", "multihed"], "did you mean multi_head"),
        (["parity", "heads.safetensors", "--module", "Multi-Head"], "did you mean multi_head"),
        (["parity", "heads.safetensors", "--module", "TransformerDecoder"], "did you mean decoder"),
        (["parity", "heads.safetensors", "--family", "brt"], "did you mean bert?"),
        (["bench", "encodr"], "did you mean encoder"),
        (["explain", "my_atn"], "did you mean my_attn?"),
        (["conformance", "--target", "flax.nx"], "did you mean flax.nnx?"),
        (["inspct", "x"], "Did you mean"),
    ],
)
def test_a_name_that_is_nearly_one(call, sentence):
    result = run(*call)
    assert result.exit_code == 2 and sentence in result.stderr
    assert "did you mean" not in run(*call[:-1], "zzzzzzzz").stderr


def test_options_are_named_as_the_command_line_does():
    heads = ["--module", "multi_head", "--num-heads", 2]
    sentence = run("parity", "part.safetensors", *heads).stderr
    assert "pass --rename if it is that" in sentence and "rename=" not in sentence
    save_checkpoint({f"net.{n}": np.ones((2, 2), np.float32) for n in ("W_q.weight", "W_k.weight", "W_v.weight")}, "n")
    sentence = run("parity", "n", "--module", "scaled_dot_product").stderr
    assert "net.W_q" in sentence and "prefix=" not in sentence
    Path("there.safetensors").touch()
    assert "pass --force to" in run("convert", "heads.safetensors", "--to", "there.safetensors", *heads).stderr
    assert "got --num-layers 2" in run("bench", "multi_head", "--num-layers", 2).stderr


def test_a_prefix_is_named_in_both_worlds():
    from jaxattn.convert.match import advice

    assert "pass prefix='net'." in advice(["a", "b"], ["net.a", "net.b"])[0]
    names = [f"{name}.{kind}" for name in ("Wq", "Wk", "Wv", "W_o") for kind in ("weight", "bias")]
    weights = {f"net.{name}": np.ones((6, 6)[: 1 + name.endswith("weight")], np.float32) for name in names}
    save_checkpoint(weights, "net.safetensors")
    result = run("parity", "net.safetensors", "--module", "multi_head", "--num-heads", 2)
    assert result.exit_code == 1 and "under another path: pass --prefix net." in result.stderr


def test_explain_lists_what_it_knows_and_wants_a_directory():
    result = run("explain")
    assert result.exit_code == 0 and all(f"  {name} " in result.stdout for name in VARIANTS)
    assert json.loads(run("explain", "--json").stdout) == {"variants": list(VARIANTS)}
    result = run("explain", "--checkpoint", "heads.safetensors")
    assert result.exit_code == 1 and "is a file: --checkpoint wants the directory that holds" in result.stderr


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_inspect_recognises_what_from_pretrained_loads(pooler, old, prefix):
    bert = known_modules()["bert"]
    shapes = source_shapes(bert.build({**SMALL, **({} if pooler else {"add_pooling_layer": False})}))
    norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"} if old else {}
    named = {}
    for name, shape in shapes.items():
        for new, ancient in norms.items():
            name = name.replace(new, ancient)
        named[prefix + name] = shape
    found = recognise(named)
    assert [(match.known.name, match.prefix, match.keys) for match in found] == [("bert", prefix, frozenset(named))]
    assert found[0].guess.settings["num_hidden_layers"] == 2 and found[0].guess.settings["hidden_size"] == 12
    save_checkpoint({name: np.ones(shape, np.float32) for name, shape in named.items()}, "model.safetensors")
    for other in ("heads.safetensors", "part.safetensors"):
        Path(other).unlink()
    Path("config.json").write_text(json.dumps({"model_type": "bert", **SMALL}))
    assert (from_pretrained(".").pooler is not None) == pooler
    assert f"{len(named)} of {len(named)} tensors: --family bert" in run("inspect", "model.safetensors").stdout


def test_digits_that_are_no_number_of_a_layer_stay_as_they_are():
    names = ["layers.007.w", "layers.7.w", "layers.8.w", f"layers.{'9' * 5000}.w", "layers.٣.w"]
    save_checkpoint({name: np.ones(2, np.float32) for name in names}, "m.safetensors")
    result = run("inspect", "m.safetensors")
    assert result.exit_code == 0 and "layers.007.w" in result.stdout and "layers.{7–8}.w" in result.stdout
    assert "layers.٣.w" in result.stdout and result.stdout.count("9") > 4999


def test_many_modules_are_recognised_in_one_pass():
    shapes = {"in_proj_weight": (18, 6), "in_proj_bias": (18,), "out_proj.weight": (6, 6), "out_proj.bias": (6,)}
    found = recognise({f"a{i}.{name}": shape for i in range(2000) for name, shape in shapes.items()})
    assert len(found) == 2000 and len({match.prefix for match in found}) == 2000


@pytest.mark.parametrize("name", ["", "demo", "convert", "inspect", "parity", "bench", "explain", "conformance"])
def test_help_at_80_columns(name, monkeypatch):
    """No line is longer, none is cut off, and none ends before the next word would not fit."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*([name] if name else []), "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    prose = [line for line in lines if not line.startswith(("╭", "│", "╰"))]
    broken = [
        (line, following)
        for line, following in zip(prose, prose[1:], strict=False)
        if line.strip() and following.strip() and len(line.rstrip()) + 1 + len(following.split()[0]) <= 79
    ]
    assert broken == []
