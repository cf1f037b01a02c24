"""Paths that are wrong, read and written: indices, directories, destinations."""

import errno
import json
import os
import resource
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch

from jaxattn._checks import ConversionError
from jaxattn.convert import saving
from jaxattn.convert.files import read_checkpoint, save_checkpoint

# Under the tests' run-time annotations a wrong kind of argument fails before our own check: call what lies below.
save_unchecked: Any = getattr(save_checkpoint, "__wrapped__", save_checkpoint)
W = np.ones(3, np.float32)


def write_index(directory, weight_map, name="model.safetensors.index.json"):
    (directory / name).write_text(weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map}))
    return directory / name


@pytest.mark.parametrize("name", ["no.safetensors", "no.pt", "no", "no/such/file.pt"])
def test_a_missing_path(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_checkpoint(tmp_path / name)


def test_a_name_too_long(tmp_path):
    with pytest.raises(ConversionError, match="cannot be read"):
        read_checkpoint(tmp_path / ("x" * 300))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.pt")
    with pytest.raises(ConversionError, match="not a regular file"):
        read_checkpoint(tmp_path / "m.pt")


def test_an_unreadable_file_and_directory(tmp_path, monkeypatch):
    save_checkpoint({"w": W}, tmp_path / "m.safetensors")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(ConversionError, match="cannot be read: Permission denied"):
            read_checkpoint(tmp_path / "m.safetensors")
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ConversionError, match="cannot be read: Permission denied"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds no checkpoint"),
        (["optimizer.pt", "training_args.bin", "readme.md"], "holds no checkpoint"),
        (["a.safetensors", "b.pt"], "several checkpoints.*\n.*a.safetensors\n.*b.pt"),
        (["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"], "without their index"),
        ([".metadata", "__0_0.distcp"], "dcp_to_torch_save"),
        (["__0_0.distcp"], "distributed checkpoint"),
        (["adapter_config.json", "adapter_model.safetensors"], "merge_and_unload"),
        (["adapter_config.json", "model.safetensors"], "merge_and_unload"),
    ],
)
def test_directories(tmp_path, files, message):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConversionError, match=message):
        read_checkpoint(tmp_path)


def test_an_adapter_file_is_known_by_its_neighbour(tmp_path):
    save_checkpoint({"prompt": W}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ConversionError, match="PEFT adapter"):
        read_checkpoint(tmp_path / "adapter_model.safetensors")


@pytest.mark.parametrize(
    "shard", ["/etc/hosts", "../m.safetensors", "a/../../m.safetensors", "..\\m.safetensors", "C:\\m", "", 3, None]
)
def test_an_index_stays_in_its_directory(tmp_path, shard):
    save_checkpoint({"w": W}, tmp_path / "m.safetensors")
    (tmp_path / "a").mkdir()
    index = write_index(tmp_path / "a", {"w": shard})
    with pytest.raises(ConversionError, match="outside its own directory.*\n.*`w`"):
        read_checkpoint(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a readable index"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "'a' twice"),
        ('{"weight_map": []}', "no `weight_map`"),
        ('{"weight_map": {}}', "is empty"),
        ('{"other": 1}', "no `weight_map`"),
        ('{"a":' + "[" * 100_000, "not a readable index"),
        ('{"a": "\udcff"}', "not a readable index"),
    ],
)
def test_bad_indices(tmp_path, text, message):
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConversionError, match=message):
        read_checkpoint(tmp_path)


def test_missing_shards_and_tensors_are_all_named(tmp_path):
    save_checkpoint({"a": W, "extra": W}, tmp_path / "1.safetensors")
    index = write_index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"})
    with pytest.raises(ConversionError, match="download is incomplete") as caught:
        read_checkpoint(index)
    assert ["2.safetensors" in caught.value.problems[0], "3.safetensors" in caught.value.problems[1]] == [True, True]
    write_index(tmp_path, {"a": "1.safetensors", "b": "1.safetensors", "c": "1.safetensors"})
    with pytest.raises(ConversionError, match="do not agree") as caught:
        read_checkpoint(index)
    assert [problem[:3] for problem in caught.value.problems] == ["`b`", "`c`", "`ex"]


def test_a_shard_holds_what_the_index_lists_there_and_no_more(tmp_path):
    save_checkpoint({"a": W, "extra": W}, tmp_path / "1.safetensors")
    index = write_index(tmp_path, {"a": "1.safetensors"})
    with pytest.raises(ConversionError, match="`extra` is in '1.safetensors', and the index does not list it"):
        read_checkpoint(index)
    save_checkpoint({"b": W, "a": W * 2}, tmp_path / "2.safetensors")
    write_index(tmp_path, {"a": "1.safetensors", "extra": "1.safetensors", "b": "2.safetensors"})
    with pytest.raises(ConversionError, match="`a` is in '2.safetensors', and the index lists it in '1.safetensors'"):
        read_checkpoint(index)
    write_index(tmp_path, {"a": "2.safetensors", "b": "2.safetensors"})
    assert sorted(read_checkpoint(index)) == ["a", "b"]


def test_shards_that_nest_their_tensors_under_two_keys(tmp_path):
    torch.save({"model": {"a": torch.ones(2)}}, tmp_path / "1.bin")
    torch.save({"ema": {"b": torch.ones(2)}}, tmp_path / "2.bin")
    index = write_index(tmp_path, {"a": "1.bin", "b": "2.bin"}, "pytorch_model.bin.index.json")
    with pytest.raises(ConversionError, match="'1.bin' has its tensors under 'model'; '2.bin' .* 'ema'"):
        read_checkpoint(index)


def test_a_path_with_nul_and_names_of_250_characters(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_checkpoint(tmp_path / "a\0b.pt")
    for name in ("x" * 238 + ".safetensors", "y" * 247 + ".pt"):
        save_checkpoint({"w": W}, tmp_path / name)
        assert len(name) == 250 and read_checkpoint(tmp_path / name)["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "text", ["{}," * 30_000_000, '{"weight_map": [' + "{}," * 9_000_000 + "0]}"], ids=["bare", "in"]
)
@pytest.mark.parametrize("header", [False, True], ids=["index", "header"])
def test_json_is_refused_by_what_it_would_make(tmp_path, text, header):
    """90 MB of text that would make gigabytes."""
    start = len(text).to_bytes(8, "little") if header else b""
    (tmp_path / "m.safetensors").write_bytes(start + text.encode())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConversionError, match="entries, more than"):
        read_checkpoint(tmp_path / "m.safetensors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.parametrize("shard", ["model.safetensors.index.json", "x\0y", "y" * 300, "."])
def test_odd_shard_names(tmp_path, shard):
    with pytest.raises(ConversionError):
        read_checkpoint(write_index(tmp_path, {"w": shard}))


@pytest.mark.parametrize("key", ["nope", "epoch", "model.nope", "", "."])
def test_a_key_that_leads_nowhere(tmp_path, key):
    torch.save({"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}, "epoch": 1}, tmp_path / "m.pt")
    with pytest.raises(ConversionError, match="(?s)model.*ema|not named tensors"):
        read_checkpoint(tmp_path / "m.pt", key=key)


def test_a_key_into_safetensors(tmp_path):
    save_checkpoint({"w": W}, tmp_path / "m.safetensors")
    with pytest.raises(ConversionError, match="has no nested dicts"):
        read_checkpoint(tmp_path / "m.safetensors", key="model")


BAD_ARRAYS = {
    "object": np.array([object()]),
    "none": None,
    "strings": np.array(["a"]),
    "complex": np.ones(2, np.complex64),
    "complex128": np.ones(2, np.complex128),
    "longdouble": np.ones(2, np.longdouble),
    "datetime": np.array(["2020-01-01"], "M8[D]"),
    "record": np.zeros(2, [("a", "f4")]),
    "int4": np.ones(2, ml_dtypes.int4),
    "float4": np.ones(2, ml_dtypes.float4_e2m1fn),
    "ragged": [[1.0], [1.0, 2.0]],
    "meta": torch.ones(2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_all_arrays_that_cannot_be_saved_are_listed(tmp_path, suffix):
    with pytest.raises(ConversionError) as caught:
        save_checkpoint(BAD_ARRAYS | {"good": W, 3: W, "\ud800": W, "__metadata__": W}, tmp_path / f"m{suffix}")
    text = str(caught.value)
    assert len(caught.value.problems) == len(BAD_ARRAYS) + 3 and all(f"`{name}`" in text for name in BAD_ARRAYS)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("state_dict", [[W], W, {}, None])
def test_what_is_no_state_dict(tmp_path, state_dict):
    with pytest.raises(ConversionError, match="must map names|is empty"):
        save_unchecked(state_dict, tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_an_existing_file_is_kept_unless_forced(tmp_path, name):
    save_checkpoint({"w": W}, tmp_path / name)
    with pytest.raises(FileExistsError, match="force=True.*--force"):
        save_checkpoint({"w": W * 2}, tmp_path / name)
    assert read_checkpoint(tmp_path / name)["w"][0] == 1
    save_checkpoint({"w": W * 2}, tmp_path / name, force=True)
    assert read_checkpoint(tmp_path / name)["w"][0] == 2


def test_wrong_destinations(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it first"):
        save_checkpoint({"w": W}, tmp_path / "no" / "m.safetensors")
    with pytest.raises(FileExistsError, match="is a directory"):
        save_checkpoint({"w": W}, tmp_path, force=True)
    with pytest.raises(ValueError, match="must end in one of"):
        save_checkpoint({"w": W}, tmp_path / "m.npz")
    with pytest.raises(ValueError, match="safetensors files only"):
        save_checkpoint({"w": W}, tmp_path / "m.pt", metadata={"a": "b"})
    with pytest.raises(ConversionError, match="strings to strings"):
        save_unchecked({"w": W}, tmp_path / "m.safetensors", metadata={"a": 1})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, name, error, step):
    save_checkpoint({"w": W}, tmp_path / name)

    def fail(*_, **__):
        raise error

    target = {"sync": (os, "fsync"), "rename": (os, "replace")}
    target["write"] = (torch, "save") if name == "m.pt" else (saving, "save_file")
    monkeypatch.setattr(*target[step], fail)
    with pytest.raises(type(error)):
        save_checkpoint({"w": W * 2}, tmp_path / name, force=True)
    assert os.listdir(tmp_path) == [name] and read_checkpoint(tmp_path / name)["w"][0] == 1


def test_an_error_of_the_library_is_ours(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise safetensors.SafetensorError("disk is full")

    monkeypatch.setattr(saving, "save_file", fail)
    with pytest.raises(ConversionError, match="disk is full"):
        save_checkpoint({"w": W}, tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == []
