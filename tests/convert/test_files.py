"""Checkpoints that are right: every format, every dtype, bit for bit, lazily."""

import gc
import json
import os
import resource
import warnings

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save_file

from jaxattn.convert.checkpoint import Checkpoint
from jaxattn.convert.files import read_checkpoint, save_checkpoint
from jaxattn.convert.safetensors_file import DTYPES

SUFFIXES = [".safetensors", ".pt", ".pth", ".bin", ".ckpt"]


def random_bits(shape, dtype, seed=0):
    """Any bits of this dtype: NaN payloads, infinities, -0.0 and subnormals included."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def everything():
    """A state dict of all dtypes, with a scalar, an empty tensor and odd names."""
    tensors = {f"layers.0.{name}": random_bits((3, 5), dtype) for name, dtype in DTYPES.items()}
    special = np.array([1.0, -0.0, np.inf, np.nan, 3.14, 1e-40], np.float32).astype(ml_dtypes.bfloat16)
    return tensors | {"": np.zeros(2), "naïve/名.x y": special, "scalar": np.array(7.5), "empty": np.zeros((0, 3, 2))}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_keeps_every_bit(tmp_path, suffix):
    tensors, path = everything(), tmp_path / f"model{suffix}"
    save_checkpoint(tensors, path)
    checkpoint = read_checkpoint(path)
    assert set(checkpoint) == set(tensors) and len(checkpoint) == len(tensors)
    for name, array in tensors.items():
        assert same_bits(checkpoint[name], array), name
        assert checkpoint.dtype(name) == array.dtype and checkpoint.shape(name) == array.shape
        assert checkpoint.nbytes(name) == array.nbytes
        assert not checkpoint[name].flags.writeable
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.T,
        lambda a: np.asfortranarray(a),
        lambda a: a[::2, ::-1],
        lambda a: a.astype(">f4"),
        lambda a: np.broadcast_to(a[:1], (4, 6)),
        lambda a: jnp.asarray(a),
        lambda a: torch.from_numpy(a).T,
        lambda a: a[0, 0],
        lambda a: a.tolist(),
    ],
    ids=["transposed", "fortran", "strided", "big-endian", "expanded", "jax", "torch", "scalar", "list"],
)
def test_saving_takes_any_strides_and_libraries(tmp_path, suffix, make):
    value = make(np.arange(24, dtype=np.float32).reshape(4, 6))
    save_checkpoint({"w": value}, tmp_path / f"m{suffix}")
    back = read_checkpoint(tmp_path / f"m{suffix}")["w"]
    expected = np.asarray(value)
    assert back.shape == expected.shape and back.dtype.byteorder in "=<"
    assert np.array_equal(back, expected)


def test_torch_and_safetensors_read_what_we_write(tmp_path):
    tensors = everything()
    del tensors[""]
    save_checkpoint(tensors, tmp_path / "m.safetensors")
    save_checkpoint(tensors, tmp_path / "m.pt")
    for loaded in (safetensors.torch.load_file(tmp_path / "m.safetensors"), torch.load(tmp_path / "m.pt")):
        assert set(loaded) == set(tensors)
        for name, tensor in loaded.items():
            assert tuple(tensor.shape) == tensors[name].shape
            assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == tensors[name].tobytes(), name


def test_what_torch_writes_is_read_bit_for_bit(tmp_path):
    base = torch.randn(6, 4)
    tensors = {
        "parameter": torch.nn.Parameter(base.clone()),
        "view": base[1:3, ::2],
        "transposed": base.T.to(torch.bfloat16),
        "negated": torch.complex(base, base).conj().imag,
        "expanded": torch.ones(1).expand(10**9),
        "tied": base,
    }
    torch.save(tensors, tmp_path / "zip.pt")
    torch.save(tensors, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("zip.pt", "old.pt"):
        checkpoint = read_checkpoint(tmp_path / name)
        assert checkpoint.format == "torch" and checkpoint.key is None
        assert checkpoint["expanded"].shape == (10**9,) and checkpoint["expanded"][-1] == 1
        for key in tensors.keys() - {"expanded"}:
            expected = tensors[key].detach().resolve_neg().contiguous()
            assert checkpoint[key].tobytes() == expected.reshape(-1).view(torch.uint8).numpy().tobytes(), key


def test_a_torch_file_without_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.arange(3.0)}, tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_checkpoint(tmp_path / "m.pt")["w"].tolist() == [0, 1, 2]


def test_content_decides_not_the_name(tmp_path):
    save_checkpoint({"w": np.ones(3)}, tmp_path / "a.safetensors")
    save_checkpoint({"w": np.ones(3)}, tmp_path / "b.pt")
    (tmp_path / "a.safetensors").rename(tmp_path / "c.pt")
    (tmp_path / "b.pt").rename(tmp_path / "d.safetensors")
    assert read_checkpoint(tmp_path / "c.pt").format == "safetensors"
    assert read_checkpoint(tmp_path / "d.safetensors").format == "torch"


@pytest.mark.parametrize("length", [640, 0x7B])
def test_a_safetensors_header_that_looks_like_another_magic(tmp_path, length):
    """Its length in little-endian bytes begins like a pickle (80 02) or like JSON ({)."""
    info = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "m.bin"
    path.write_bytes(length.to_bytes(8, "little") + info.ljust(length) + np.float32(3).tobytes())
    assert read_checkpoint(path)["w"] == [3]


def test_unaligned_tensors_are_read(tmp_path):
    header = json.dumps({"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    header += b" " * (3 - len(header) % 8)
    (tmp_path / "m.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + np.array([1.5, 2.5]).tobytes()
    )
    array = read_checkpoint(tmp_path / "m.safetensors")["w"]
    assert array.flags.aligned and not array.flags.writeable and array.tolist() == [1.5, 2.5]


def write_sharded(directory, suffix=".safetensors"):
    names = [f"model-{number:05}-of-00002{suffix}" for number in (1, 2)]
    parts = [{f"layers.{shard}.{part}": random_bits((4, 3), "f4", shard) for part in "qkv"} for shard in (0, 1)]
    for name, part in zip(names, parts, strict=True):
        save_checkpoint(part, directory / name)
    weight_map = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    index = directory / f"model{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 288}, "weight_map": weight_map}))
    return index, parts[0] | parts[1]


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("as_directory", [True, False])
def test_shards_read_like_one_file(tmp_path, suffix, as_directory):
    index, tensors = write_sharded(tmp_path, suffix)
    checkpoint = read_checkpoint(tmp_path if as_directory else index)
    assert checkpoint.format == {".safetensors": "safetensors", ".bin": "torch"}[suffix]
    assert [file.name for file in checkpoint.files] == sorted(file.name for file in tmp_path.glob("model-*"))
    assert set(checkpoint) == set(tensors)
    assert all(same_bits(checkpoint[name], array) for name, array in tensors.items())


def test_shards_that_are_links_are_followed(tmp_path):
    """A hub cache keeps its files elsewhere and links to them."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    _, tensors = write_sharded(tmp_path / "blobs")
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(f"../blobs/{file.name}")
    assert set(read_checkpoint(tmp_path / "snapshot")) == set(tensors)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "other.safetensors"], "model.safetensors"),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], "pytorch_model.bin"),
        (["adapter.safetensors", "notes.txt"], "adapter.safetensors"),
        (["weights.ckpt", "rng_state_0.pth"], "weights.ckpt"),
    ],
)
def test_a_directory_has_one_checkpoint(tmp_path, files, chosen):
    for name in files:
        tensors = {name: np.zeros(1)}
        (tmp_path / name).write_text("") if name.endswith("txt") else save_checkpoint(tensors, tmp_path / name)
    checkpoint = read_checkpoint(tmp_path)
    assert list(checkpoint) == [chosen] and checkpoint.files == (tmp_path / chosen,) and checkpoint.path == tmp_path


WEIGHTS = {"w": torch.arange(3.0)}
OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 0.1}]}


@pytest.mark.parametrize("name", ["state_dict", "model", "model_state_dict", "network", "ema"])
def test_the_only_nested_state_dict_is_found(tmp_path, name):
    torch.save({"epoch": 3, name: WEIGHTS, "optimizer": OPTIMIZER, "args": {"lr": 0.1}}, tmp_path / "m.pt")
    checkpoint = read_checkpoint(tmp_path / "m.pt")
    assert checkpoint.key == name and checkpoint["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("key", ["model.encoder", "a.b.c", "ema"])
def test_a_key_may_be_dotted_at_any_level(tmp_path, key):
    torch.save({"model": {"encoder": WEIGHTS}, "a.b": {"c": WEIGHTS}, "a": {"b": 1}, "ema": WEIGHTS}, tmp_path / "m.pt")
    checkpoint = read_checkpoint(tmp_path / "m.pt", key=key)
    assert checkpoint.key == key and list(checkpoint) == ["w"]


def test_metadata_and_repr(tmp_path):
    save_checkpoint({"w": np.ones(3)}, tmp_path / "a.safetensors")
    assert read_checkpoint(tmp_path / "a.safetensors").metadata == {"format": "pt"}
    save_checkpoint({"w": np.ones(3)}, tmp_path / "b", metadata={"made by": "me"})
    checkpoint = read_checkpoint(str(tmp_path / "b"))
    assert checkpoint.metadata == {"made by": "me"} and isinstance(checkpoint, Checkpoint)
    assert "safetensors" in repr(checkpoint) and "1 tensors" in repr(checkpoint)


def test_an_unknown_name_is_a_key_error(tmp_path):
    save_checkpoint({"w": np.ones(3)}, tmp_path / "a.safetensors")
    checkpoint = read_checkpoint(tmp_path / "a.safetensors")
    assert "x" not in checkpoint and checkpoint.get("x") is None
    with pytest.raises(KeyError):
        checkpoint["x"]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="counts resident pages by /proc")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_pages_leave_memory_with_their_array(tmp_path, suffix):
    mib = 2**20
    part = np.ones((mib,), np.float32)  # 4 MiB
    save_checkpoint({f"w{number}": part for number in range(48)}, tmp_path / f"m{suffix}")
    checkpoint = read_checkpoint(tmp_path / f"m{suffix}")
    gc.collect()
    before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
    for name in checkpoint:
        assert checkpoint[name].sum() == mib
        assert resident() - before < 16 * mib
    kept = dict(checkpoint)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    del checkpoint
    gc.collect()
    assert all(array[-1] == 1 for array in kept.values())


def test_a_view_keeps_its_bytes(tmp_path):
    array = random_bits((512, 256), "f4")
    save_checkpoint({"w": array, "v": array}, tmp_path / "m.safetensors")
    view = read_checkpoint(tmp_path / "m.safetensors")["w"].T[3:]
    gc.collect()
    assert same_bits(np.ascontiguousarray(view), np.ascontiguousarray(array.T[3:]))


def test_a_checkpoint_can_be_saved_over_itself(tmp_path):
    tensors, path = everything(), tmp_path / "m.safetensors"
    save_checkpoint(tensors, path)
    checkpoint = read_checkpoint(path)
    save_checkpoint(checkpoint, path, force=True)
    assert all(same_bits(checkpoint[name], array) for name, array in tensors.items())
    assert all(same_bits(read_checkpoint(path)[name], array) for name, array in tensors.items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_files_get_the_usual_permissions(tmp_path, suffix):
    (tmp_path / "plain").touch()
    save_checkpoint({"w": np.ones(3)}, tmp_path / f"m{suffix}")
    assert (tmp_path / f"m{suffix}").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_nothing_warns(tmp_path):
    array = np.ones((2, 3))
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in (".safetensors", ".pt"):
            save_checkpoint({"w": array}, tmp_path / f"m{suffix}")
            assert read_checkpoint(tmp_path / f"m{suffix}")["w"].sum() == 6


def test_files_of_other_writers(tmp_path):
    save_file({"w": np.ones(3, np.float16)}, tmp_path / "m.safetensors")
    assert read_checkpoint(tmp_path / "m.safetensors").metadata == {}
