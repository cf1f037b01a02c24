"""`jaxattn inspect`: what is in a file, what is wrong with its numbers, what it looks like."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx
from typer.testing import CliRunner

from jaxattn.cli import app
from jaxattn.cli.inspect import Tensor, _groups, _shared_name
from jaxattn.cli.recognise import guess_settings, known_modules, recognise
from jaxattn.cli.variants import VARIANTS
from jaxattn.convert.files import save_checkpoint
from jaxattn.convert.flax_layout import source_shapes

SIZES = {
    "embed_dim": 22,
    "num_heads": 2,
    "kv_dim": 13,
    "dim_feedforward": 17,
    "num_layers": 3,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "query_size": 11,
    "key_size": 13,
    "value_size1": 7,
    "value_size2": 5,
    "output_size": 19,
}
SILENT = {"num_heads", "query_size", "key_size", "value_size2", "num_attention_heads"}
BERT = {
    "num_hidden_layers": 2,
    "vocab_size": 31,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "max_position_embeddings": 17,
    "type_vocab_size": 5,
}


def inspect(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)


def shapes_of(name: str, **sizes: int) -> dict[str, tuple[int, ...]]:
    if name == "bert":
        return source_shapes(known_modules()["bert"].build({**BERT, **sizes}))
    sizes = {size: SIZES[size] for size in VARIANTS[name].size_names} | sizes
    return source_shapes(nnx.eval_shape(lambda: VARIANTS[name].flax(nnx.Rngs(0), **sizes)))


def zeros(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", "model.text."])
@pytest.mark.parametrize("name", [*(name for name in VARIANTS if name != "sinusoidal"), "bert"])
def test_a_module_is_recognised_with_its_sizes(name, prefix):
    others = {"epoch": (), f"{prefix}other.weight": (3,), "zzz.weight": (22, 22)}
    found = recognise({**{prefix + key: shape for key, shape in shapes_of(name).items()}, **others})
    assert [(match.known.name, match.prefix) for match in found] == [(name, prefix)] or name == "multi_head"
    guess = found[0].guess
    wanted = BERT if name == "bert" else {size: SIZES[size] for size in VARIANTS[name].size_names}
    assert found[0].known.name == name and set(guess.undetermined) == SILENT & wanted.keys()
    assert guess.settings == {size: value for size, value in wanted.items() if size not in SILENT}


def test_two_modules_that_fit_are_both_named():
    """Self and cross attention have the same weights when both sequences are of one width."""
    assert [match.known.name for match in recognise(shapes_of("multi_head"))] == ["multi_head", "multi_head_cross"]


def test_parts_of_a_model_are_named_where_no_whole_fits():
    shapes = {f"blocks.{i}.{key}": shape for i in range(2) for key, shape in shapes_of("encoder_layer").items()}
    found = [(match.known.name, match.prefix) for match in recognise(shapes)]
    assert found == [("encoder_layer", "blocks.0."), ("encoder_layer", "blocks.1.")]


def test_a_module_with_some_of_the_tensors_of_another_one_is_not_named():
    """The names of an encoder layer are among those of a decoder layer, with the same shapes."""
    assert shapes_of("encoder_layer").items() < shapes_of("decoder_layer").items()
    assert [match.known.name for match in recognise(shapes_of("decoder_layer"))] == ["decoder_layer"]
    parts = {f"net.{part}.{key}": shape for part in ("encoder", "decoder") for key, shape in shapes_of(part).items()}
    found = [(match.known.name, match.prefix) for match in recognise(parts)]
    assert found == [("decoder", "net.decoder."), ("encoder", "net.encoder.")]


@pytest.mark.parametrize("change", ["gone", "rank", "shape", "two shapes", "prefix within a word"])
def test_what_does_not_fit_is_not_recognised(change):
    shapes = shapes_of("multi_head")
    if change == "gone":
        del shapes["Wq.bias"]
    elif change == "prefix within a word":
        shapes = {f"my{name}": shape for name, shape in shapes.items()}
    else:
        shapes["Wq.bias"] = (22, 1) if change == "rank" else (23,)
    if change == "two shapes":  # on average they fit
        shapes["Wk.bias"] = (21,)
    assert recognise(shapes) == []


def test_packed_weights_are_found_for_cross_attention_of_one_width():
    guess = guess_settings(known_modules()["multihead_torch_cross"], shapes_of("multihead_torch"))
    assert guess and guess.settings == {"embed_dim": 22, "kv_dim": None}


def test_table_and_totals(tmp_path):
    save_checkpoint(zeros(shapes_of("encoder")) | {"step": np.zeros((), np.int64)}, tmp_path / "a.safetensors")
    result = inspect(tmp_path / "a.safetensors")
    assert result.exit_code == 0 and not result.stderr
    lines = result.stdout.splitlines()
    assert any(line.split() == "layers.{0–2}.linear1.weight (17, 22) float32 4.4 KiB 3".split() for line in lines)
    count = sum(np.prod(shape, dtype=int) for shape in shapes_of("encoder").values())
    assert f"safetensors: 37 tensors, 34.0 KiB: {count:,} × float32, 1 × int64" in lines
    sizes = "num_layers=3, embed_dim=22, dim_feedforward=17"
    assert f"Looks like encoder ({sizes}), all but `step`: --module encoder --num-heads …" in lines
    choices = "--norm-first (False otherwise), --activation (relu otherwise), --layer-norm-eps (1e-05 otherwise)"
    assert f"  The file doesn't tell, so give what the model has: {choices}" in lines
    every = inspect(tmp_path / "a.safetensors", "--all").stdout
    assert all(f"layers.{i}.linear1.weight" in every for i in range(3)) and "{" not in every


def test_json_has_every_tensor(tmp_path):
    torch.save({"net": {"a.weight": torch.ones(3, 5, dtype=torch.bfloat16)}, "epoch": 3}, tmp_path / "a.pt")
    found = json.loads(inspect(tmp_path / "a.pt", "--json").stdout)
    assert found["format"] == "torch" and found["key"] == "net" and found["finite"] and found["looks_like"] == []
    expected = {"name": "a.weight", "dtype": "bfloat16", "shape": [3, 5], "bytes": 30, "nan": 0, "infinite": 0}
    assert found["tensors"] == [expected] and found["total"] == {"tensors": 1, "bytes": 30}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_numbers_that_are_not_finite_are_counted(dtype, tmp_path):
    arrays = {f"layers.{i}.weight": np.ones((2, 4)).astype(dtype) for i in range(3)}
    arrays["layers.1.weight"][0, :3] = [np.nan, np.inf, -np.inf]
    save_checkpoint(arrays, tmp_path / "a.safetensors")
    result = inspect(tmp_path / "a.safetensors")
    assert result.exit_code == 0
    assert "warning: NaN or infinity in 1 of 3 tensors: `layers.1.weight`" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if "weight" in line]
    assert [row[0] for row in rows] == ["layers.{0,2}.weight", "layers.1.weight"] and rows[1][-2:] == ["1", "2"]
    found = json.loads(inspect(tmp_path / "a.safetensors", "--json").stdout)
    assert not found["finite"] and [(t["nan"], t["infinite"]) for t in found["tensors"]] == [(0, 0), (1, 2), (0, 0)]


def test_a_converted_file_is_described(tmp_path):
    save_checkpoint(zeros(shapes_of("multi_head")), tmp_path / "a.safetensors")
    arguments = [
        tmp_path / "a.safetensors",
        "--to",
        tmp_path / "b.safetensors",
        "--module",
        "multi_head",
        "--num-heads",
        2,
    ]
    assert CliRunner().invoke(app, ["convert", *map(str, arguments)]).exit_code == 0
    said = "In Flax's layout, written by `jaxattn convert`: multi_head (embed_dim=22, num_heads=2)"
    assert said in inspect(tmp_path / "b.safetensors").stdout
    found = json.loads(inspect(tmp_path / "b.safetensors", "--json").stdout)["written_by_convert"]
    assert found == {"module": "multi_head", "settings": {"embed_dim": 22, "num_heads": 2}}


def test_repeated_layers_share_a_line_only_where_they_are_alike():
    def tensor(name: str, shape: tuple[int, ...] = (3,), dtype: str = "float32", nan: int = 0) -> Tensor:
        return Tensor(name, dtype, shape, 12, nan, 0)

    names = [f"h.{i}.e.{j}.w" for i in range(2) for j in (0, 1, 2, 5)]
    tensors = [tensor(name) for name in names]
    tensors += [tensor("h.2.e.0.w", (4,)), tensor("h.3.e.0.w", dtype="float16"), tensor("h.4.e.0.w", nan=1)]
    tensors += [tensor("conv1.w"), tensor("conv2.w"), tensor("0.w"), tensor("1.w")]
    expected = ["h.{0–1}.e.{0,1,2,5}.w", "h.2.e.0.w", "h.3.e.0.w", "h.4.e.0.w", "conv1.w", "conv2.w", "{0–1}.w"]
    assert [_shared_name(group) for group in _groups(tensors, every=False)] == expected
    assert len(_groups(tensors, every=True)) == len(tensors)


def test_recognition_computes_nothing():
    """Modules are built abstractly: names and shapes, no memory."""
    module = known_modules()["bert"].build(known_modules()["bert"].bases[0])
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nnx.state(module)))
