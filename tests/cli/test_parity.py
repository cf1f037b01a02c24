"""`jaxattn parity`: a file in PyTorch and in Flax, the verdict, and the exit code."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from jaxattn.cli import app, parity
from jaxattn.cli.original import Example
from jaxattn.cli.variants import VARIANTS
from jaxattn.cli.verdicts import narrow_table
from jaxattn.convert.files import save_checkpoint
from jaxattn.convert.torch_bridge import from_torch
from jaxattn.parity.report import ParityReport, Row

HEADS = ["--module", "multi_head", "--num-heads", "2"]
SHAPE = ["--batch", "2", "--length", "3"]
QUICK = [*SHAPE, "--steps", "0", "--no-html"]


def run(*arguments: object):
    return CliRunner().invoke(app, ["parity", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The page goes into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return VARIANTS["multi_head"].torch(embed_dim=6, num_heads=2).state_dict()


@pytest.fixture
def file(weights, tmp_path):
    save_checkpoint(weights, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_everything_is_reported_and_drawn(file):
    result = run(file, *HEADS, *SHAPE)
    assert result.exit_code == 0 and result.stderr == "Wrote parity.html\n"
    title = "Parity of torch MultiHeadSelfAttention and Flax MultiHeadSelfAttention (float32): ok"
    assert title in result.stdout and "gradient of Wq.weight" in result.stdout
    assert "Layer by layer: all 5 modules agree in float64; on PyTorch's own inputs" in result.stdout
    assert "Training: 5 steps of AdamW agree in float64, parameters within" in result.stdout
    page = Path("parity.html").read_text()
    assert parity.MARK in page and all(
        part in page for part in ("5 of 5 layers agree", "5 of 5 training steps agree", "AdamW")
    )
    assert parity._destination(None, no_html=False, as_json=False, force=False) == Path("parity.html")


def test_what_convert_wrote_needs_no_options(file, tmp_path):
    arguments = ["convert", file, "--to", tmp_path / "b.safetensors", *HEADS]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    options = ["--steps", 2, "--optimizer", "sgd", "--seed", 3]
    result = run(tmp_path / "b.safetensors", *SHAPE, *options, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and not result.stderr and report["ok"] and report["seed"] == 3
    assert [row["shape"] for row in report["rows"] if row["kind"] == "output"] == [[2, 3, 6], [2, 2, 3, 3]]
    assert {layer["torch_path"] for layer in report["trace"]["layers"]} == {"", "Wq", "Wk", "Wv", "W_o"}
    assert report["trace"]["ok"] and report["trace"]["maps"] == [] and report["training"]["ok"]
    losses = [step["torch_loss"] for step in report["training"]["steps"]]
    assert report["training"]["optimizer"] == "SGD" and len(set(losses)) == 2
    assert not list(Path().glob("*.html"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_the_dtype_of_the_weights(dtype, weights, tmp_path):
    torch.save({f"a.{name}": tensor.to(dtype) for name, tensor in weights.items()}, tmp_path / "a.pt")
    result = run(tmp_path / "a.pt", *HEADS, "--prefix", "a", *QUICK)
    assert result.exit_code == 0 and f"({str(dtype).removeprefix('torch.')}): ok" in result.stdout


@pytest.mark.parametrize("name", ["my_attn", "multi_head_cross", "decoder_layer"])
def test_other_modules(name, tmp_path):
    sizes = {"embed_dim": 6, "num_heads": 2, "kv_dim": 5, "dim_feedforward": 7, "num_layers": 1}
    sizes |= {"query_size": 2, "key_size": 3, "value_size1": 4, "value_size2": 5, "output_size": 6}
    sizes = {size: sizes[size] for size in VARIANTS[name].size_names}
    save_checkpoint(VARIANTS[name].torch(**sizes).state_dict(), tmp_path / "a.safetensors")
    flags = [part for size, value in sizes.items() for part in (f"--{size.replace('_', '-')}", value)]
    result = run(tmp_path / "a.safetensors", "--module", name, *flags, *QUICK, "--source-length", 5, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    choices = {"norm_first": False, "activation": "relu", "layer_norm_eps": 1e-5}
    assert report["assumed"] == (choices if name == "decoder_layer" else {})
    assert any("norm_first=False" in note for note in report["notes"]) == (name == "decoder_layer")
    assert report["trace"]["ok"] and report["training"] is None
    inputs = [row for row in report["rows"] if row["what"].startswith("gradient of ")]
    assert name == "my_attn" or [2, 3, 6] in [row["shape"] for row in inputs]
    assert name != "decoder_layer" or [2, 5, 6] in [row["shape"] for row in inputs]
    assert "cross" not in name or [2, 5, 5] in [row["shape"] for row in inputs]


def test_a_difference_is_named_and_fails(file, monkeypatch):
    """A matrix that lies the other way, which no shape tells."""

    def transposed(*arguments):
        module = torch_original(*arguments)
        module.Wk.weight.data = module.Wk.weight.data.T.contiguous()
        return module

    torch_original = parity.torch_original
    monkeypatch.setattr(parity, "torch_original", transposed)
    result = run(file, *HEADS, *SHAPE, "--steps", 1, "--html", "wrong.html")
    assert result.exit_code == 1 and result.stderr == "Wrote wrong.html\n"
    assert "FAILED in 9 of 12 rows" in result.stdout and "gradient of Wk.weight" in result.stdout
    assert "Layer by layer: first divergence at Wk: transposed weight: `Wk.weight`" in result.stdout
    assert "Training: with AdamW they part at step 0: " in result.stdout
    assert "transposed weight" in Path("wrong.html").read_text()


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--html", "mine.html"], 1, "`mine.html` exists and is no page of this command: pass --force to replace it"),
        (["--html", "folder"], 1, "`folder` is a directory"),
        (["--html", "none/a.html"], 1, "The directory `none` does not exist"),
        (["--html", "a.html", "--no-html"], 2, "contradict each other"),
        (["--steps", "-1"], 2, "--steps"),
        (["--optimizer", "lion"], 2, "'adamw'"),
    ],
)
def test_a_page_that_cannot_be_written_and_wrong_options(options, code, sentence, file):
    """Said before anything is computed."""
    Path("mine.html").write_text("mine")
    Path("folder").mkdir()
    result = run(file, *HEADS, *options)
    assert result.exit_code == code and not result.stdout
    assert sentence in " ".join(result.stderr.replace("│", " ").split())
    assert Path("mine.html").read_text() == "mine"
    assert parity._destination(Path("mine.html"), no_html=False, as_json=True, force=True) == Path("mine.html")


def test_a_narrow_terminal_shows_errors_with_what_is_allowed():
    rows = (
        Row("output", "output", (2, 3), 2e-15, 1e-12, 3e-7, 4e-7, 5e-6),
        Row(
            "gradient of layers.1.self_attn.out_proj.weight", "gradient", (3, 3), 0.5, 4e-12, problems=("0.5 > 4e-12",)
        ),
    )
    console = Console(width=80, file=io.StringIO())
    console.print(narrow_table(ParityReport("A", "B", "float32", 0, rows)))
    lines = [" ".join(line.replace("│", " ").split()) for line in console.file.getvalue().splitlines()]  # pyright: ignore[reportAttributeAccessIssue] -- StringIO
    assert lines[0] == "Parity of torch A and Flax B (float32): FAILED in 1 of 2 rows"
    assert "output 2.0e-15 1.0e-12 3.0e-07 5.0e-06 ok" in lines
    assert "gradient of 5.0e-01 4.0e-12 FAILED" in lines


def test_a_module_without_parameters_is_not_trained():
    module, example = torch.nn.Tanh(), Example([(np.ones((2, 3), np.float32),)], {})
    said: list[str] = []
    report = parity._examine(module, from_torch(module), example, 0, 2, "adam", lambda what: said.append(str(what)))
    assert report.ok and report.training is None and "Training: there are no parameters" in said


def test_a_family_against_transformers(tmp_path):
    import transformers

    sizes = {"vocab_size": 31, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 7, "max_position_embeddings": 11, "hidden_act": "gelu"}
    config = transformers.BertConfig.from_dict(sizes)
    save_checkpoint(
        transformers.BertModel(config, add_pooling_layer=False).state_dict(), tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    result = run(tmp_path, "--family", "bert", *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["torch_module"], report["flax_module"], report["ok"]) == ("BertModel", "Bert", True)
    assert "pooler_output" not in [row["what"] for row in report["rows"]]
    pairs = {layer["torch_path"]: layer["flax_path"] for layer in report["trace"]["layers"]}
    assert pairs["encoder.layer.0"] == "encoder.layers.0"
    assert pairs["encoder.layer.0.attention.output.dense"] == "encoder.layers.0.self_attn.out_proj"
    assert pairs["encoder.layer.0.intermediate.dense"] == "encoder.layers.0.linear1"
    lonely = [path for path in report["trace"]["unpaired"] if path.startswith("torch") and "dropout" not in path]
    assert pairs["encoder.layer.0.attention.self"] == "encoder.layers.0.self_attn"
    parts = {"attention", "attention.output", "intermediate", "intermediate.intermediate_act_fn", "output"}
    assert set(lonely) == {f"torch: encoder.layer.0.{part}" for part in parts}


@pytest.mark.parametrize(("package", "extra"), [("torchref", "jaxattn[torch]"), ("transformers", "jaxattn[test]")])
def test_a_missing_package_is_named_with_its_extra(package, extra, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    if package == "transformers":
        from jaxattn.cli.recognise import known_modules
        from jaxattn.convert.flax_layout import source_shapes

        sizes = {"vocab_size": 3, "hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1}
        sizes |= {"intermediate_size": 2, "max_position_embeddings": 2, "type_vocab_size": 1}
        shapes = source_shapes(known_modules()["bert"].build(sizes))
        save_checkpoint({name: np.zeros(s, np.float32) for name, s in shapes.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
        result = run(tmp_path / "model.safetensors", "--family", "bert")
    else:
        result = run(file, *HEADS)
    assert result.exit_code == 1 and "ImportError" in result.stderr and f'pip install "{extra}"' in result.stderr


def test_weights_of_several_dtypes_are_refused(weights, tmp_path):
    weights["Wq.bias"] = weights["Wq.bias"].half()
    save_checkpoint(weights, tmp_path / "a.safetensors")
    result = run(tmp_path / "a.safetensors", *HEADS)
    assert result.exit_code == 1 and "weights of one dtype, got float16, float32" in result.stderr
