"""`jaxattn parity`: a file in PyTorch and in Flax, the verdict, and the exit code."""

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from jaxattn.cli import app, parity
from jaxattn.cli.variants import VARIANTS
from jaxattn.convert.files import save_checkpoint

HEADS = ["--module", "multi_head", "--num-heads", "2"]
SHAPE = ["--batch", "2", "--length", "3"]


def run(*arguments: object):
    return CliRunner().invoke(app, ["parity", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return VARIANTS["multi_head"].torch(embed_dim=6, num_heads=2).state_dict()


@pytest.fixture
def file(weights, tmp_path):
    save_checkpoint(weights, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_the_report(file):
    result = run(file, *HEADS, *SHAPE)
    assert result.exit_code == 0 and not result.stderr
    title = "Parity of torch MultiHeadSelfAttention and Flax MultiHeadSelfAttention (float32): ok"
    assert title in result.stdout and "gradient of Wq.weight" in result.stdout


def test_what_convert_wrote_needs_no_options(file, tmp_path):
    arguments = ["convert", file, "--to", tmp_path / "b.safetensors", *HEADS]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    result = run(tmp_path / "b.safetensors", *SHAPE, "--seed", 3, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["ok"] and report["seed"] == 3
    assert [row["shape"] for row in report["rows"] if row["kind"] == "output"] == [[2, 3, 6], [2, 2, 3, 3]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_the_dtype_of_the_weights(dtype, weights, tmp_path):
    torch.save({f"a.{name}": tensor.to(dtype) for name, tensor in weights.items()}, tmp_path / "a.pt")
    result = run(tmp_path / "a.pt", *HEADS, "--prefix", "a", *SHAPE)
    assert result.exit_code == 0 and f"({str(dtype).removeprefix('torch.')}): ok" in result.stdout


@pytest.mark.parametrize("name", ["my_attn", "multi_head_cross", "encoder"])
def test_other_modules(name, tmp_path):
    sizes = {"embed_dim": 6, "num_heads": 2, "kv_dim": 5, "dim_feedforward": 7, "num_layers": 1}
    sizes |= {"query_size": 2, "key_size": 3, "value_size1": 4, "value_size2": 5, "output_size": 6}
    sizes = {size: sizes[size] for size in VARIANTS[name].size_names}
    save_checkpoint(VARIANTS[name].torch(**sizes).state_dict(), tmp_path / "a.safetensors")
    flags = [part for size, value in sizes.items() for part in (f"--{size.replace('_', '-')}", value)]
    result = run(tmp_path / "a.safetensors", "--module", name, *flags, *SHAPE, "--source-length", 5, "--json")
    assert result.exit_code == 0, result.stderr
    inputs = [row for row in json.loads(result.stdout)["rows"] if row["what"].startswith("gradient of ")]
    assert name == "my_attn" or [2, 3, 6] in [row["shape"] for row in inputs]
    assert "cross" not in name or [2, 5, 5] in [row["shape"] for row in inputs]


def test_a_difference_is_shown_and_fails(file, monkeypatch):
    def twin(*arguments):
        module = torch_twin(*arguments)
        with torch.no_grad():
            next(module.parameters())[0, 0] += 1e-3
        return module

    torch_twin = parity._torch_twin
    monkeypatch.setattr(parity, "_torch_twin", twin)
    result = run(file, *HEADS, *SHAPE)
    assert result.exit_code == 1 and not result.stderr
    assert "FAILED" in result.stdout and "differs in 1 of 36 elements" in result.stdout


def test_a_family_against_transformers(tmp_path):
    import transformers

    sizes = {"vocab_size": 31, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 7, "max_position_embeddings": 11, "hidden_act": "gelu"}
    config = transformers.BertConfig.from_dict(sizes)
    save_checkpoint(
        transformers.BertModel(config, add_pooling_layer=False).state_dict(), tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    result = run(tmp_path, "--family", "bert", *SHAPE)
    assert result.exit_code == 0, result.stderr
    assert "Parity of torch BertModel and Flax Bert (float32): ok" in result.stdout
    assert "pooler_output" not in result.stdout


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
