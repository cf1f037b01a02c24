"""Checkpoints that are wrong: each gets one clear sentence, and nothing is run or left behind."""

import argparse
import gzip
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch

from jaxattn._checks import ConversionError
from jaxattn.convert.files import read_checkpoint, save_checkpoint


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def info(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


GOOD = safetensors_bytes({"w": info()}, bytes(8))
TWICE = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}'

FILES = {
    "empty": (b"", "is empty"),
    "8 bytes": (GOOD[:8], "truncated|not a safetensors"),
    "3 bytes": (GOOD[:3], "fewer than a safetensors header"),
    "one byte short": (GOOD[:-1], "truncated"),
    "one byte more": (GOOD + b"x", "bytes that belong to no tensor"),
    "half a header": (GOOD[:20], "announces a header of 61 bytes and has 12 left"),
    "header longer than the file": (safetensors_bytes({"w": info()}, bytes(8), length=90_000_000), "truncated"),
    "header of a terabyte": (safetensors_bytes({"w": info()}, bytes(8), length=2**40), "announce a header"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html>login</html>", "web page"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(50), "GGUF"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(50), "HDF5"),
    "npy": (b"\x93NUMPY\x01\0" + bytes(50), "NumPy array"),
    "gzip": (gzip.compress(GOOD), "gzip"),
    "noise": (bytes(range(200, 256)), "announce a header"),
    "overlap": (safetensors_bytes({"a": info(), "b": info(offsets=(4, 12))}, bytes(12)), "invalid offset"),
    "gap": (safetensors_bytes({"a": info(), "b": info(offsets=(12, 20))}, bytes(20)), "invalid offset"),
    "out of range": (safetensors_bytes({"a": info(offsets=(8, 16))}, bytes(8)), "invalid offset"),
    "backwards": (safetensors_bytes({"a": info(offsets=(8, 0))}, bytes(8)), "invalid offset|damaged"),
    "name twice": (safetensors_bytes(TWICE, bytes(8)), "'w' twice"),
    "name not UTF-8": (safetensors_bytes(b'{"a\xff":{"dtype":"F32"}}', bytes(8)), "UTF-8"),
    "lone surrogate": (safetensors_bytes(b'{"a\\ud800":{"dtype":"F32"}}', bytes(8)), "damaged"),
    "not JSON": (safetensors_bytes(b"{hello", bytes(8)), "JSON"),
    "nested for ever": (safetensors_bytes(b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}"), "damaged"),
    "unknown dtype": (safetensors_bytes({"w": info("Q4")}, bytes(8)), "Q4"),
    "complex": (safetensors_bytes({"w": info("C64", (1,))}, bytes(8)), "`w` has the complex dtype C64"),
    "packed": (safetensors_bytes({"w": info("F4", (16,))}, bytes(8)), "`w` has the packed dtype F4"),
    "too many axes": (safetensors_bytes({"w": info("F32", (1,) * 70, (0, 4))}, bytes(4)), "NumPy cannot hold"),
    "too long": (safetensors_bytes({"w": info("F32", (0, 2**40, 2**40), (0, 0))}), "NumPy cannot hold"),
    "overflowing": (safetensors_bytes({"w": info("F32", (2**62, 8), (0, 0))}), "overflow"),
    "no tensors": (safetensors_bytes({"__metadata__": {"a": "b"}}), "holds no tensors"),
    "json": (b'{"hello": 1}', "no `weight_map`"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_bytes(tmp_path, name):
    content, message = FILES[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConversionError, match=message) as caught:
        read_checkpoint(path)
    assert str(path) in caught.value.headline
    assert len(str(caught.value).splitlines()) == 1 + len(caught.value.problems)


@pytest.mark.parametrize("suffix", [".pt", ".bin", ""])
@pytest.mark.parametrize("content", [b"hello world", b"\x10" + bytes(60)])
def test_a_foreign_file_under_torch_names(tmp_path, suffix, content):
    (tmp_path / f"m{suffix}").write_bytes(content)
    with pytest.raises(ConversionError, match="not a checkpoint we know"):
        read_checkpoint(tmp_path / f"m{suffix}")


def test_every_bad_tensor_is_listed(tmp_path):
    header = {"a": info("C64", (1,)), "b": info("F32", (2,), (8, 16)), "c": info("F4", (16,), (16, 24))}
    (tmp_path / "m.safetensors").write_bytes(safetensors_bytes(header, bytes(24)))
    with pytest.raises(ConversionError) as caught:
        read_checkpoint(tmp_path / "m.safetensors")
    assert [problem[:3] for problem in caught.value.problems] == ["`a`", "`c`"]


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


W = torch.arange(12.0).reshape(3, 4)
OPTIMIZER = {"state": {0: {"exp_avg": W}}, "param_groups": [{"lr": 0.1}]}
TORCH = {
    "whole module": (Net(), "whole pickled module .*Net.*state_dict"),
    "built-in module": (torch.nn.Linear(2, 2), "whole pickled module .*Linear"),
    "namespace": ({"w": W, "args": argparse.Namespace(a=1)}, "argparse.Namespace.*safetensors"),
    "numpy scalar": ({"w": W, "lr": np.float64(0.1)}, "objects other than tensors .*scalar"),
    "numpy array": ({"w": np.ones(3)}, "objects other than tensors"),
    "list": ([W], "holds a list"),
    "bare tensor": (W, "one bare tensor"),
    "integer keys": ({1: W, "b": W}, "1 is a int key"),
    "float entry": ({"w": W, "lr": 0.1}, "`lr` is a float, not a tensor"),
    "none entry": ({"w": W, "extra": None}, "`extra` is a NoneType"),
    "storage": ({"w": W.untyped_storage()}, "TypedStorage, not a tensor"),
    "empty": ({}, "holds no tensors"),
    "no tensors": ({"epoch": 3}, "`epoch` is a int"),
    "optimizer": (OPTIMIZER, "state of an optimizer"),
    "only an optimizer below": ({"epoch": 1, "optimizer": OPTIMIZER}, "state of an optimizer"),
    "two state dicts": ({"model": {"w": W}, "ema": {"w": W}, "epoch": 1}, "key='model'\n.*key='ema'"),
    "tensors beside a state dict": ({"model": {"w": W}, "loss": W}, "state dict lies under key='model'"),
    "meta": ({"a.w": W.to("meta")}, "`a.w` is a meta tensor"),
    "coo": ({"w": W.to_sparse()}, "`w` .*sparse_coo"),
    "csr": ({"w": W.to_sparse_csr()}, "`w` .*sparse_csr"),
    "csc": ({"w": W.to_sparse_csc()}, "`w` .*sparse_csc"),
    "bsr": ({"w": torch.ones(4, 4).to_sparse_bsr((2, 2))}, "`w` .*sparse_bsr"),
    "bsc": ({"w": torch.ones(4, 4).to_sparse_bsc((2, 2))}, "`w` .*sparse_bsc"),
    "complex": ({"w": W.to(torch.complex64)}, "`w` is complex"),
    "nested": ({"w": torch.nested.nested_tensor([W, W])}, "(`w` is|holds) a nested"),
    "jagged": ({"w": torch.nested.nested_tensor([W, W], layout=torch.jagged)}, "(`w` is|holds) a nested"),
    "quantised": ({"w": torch.quantize_per_tensor(W, 0.1, 0, torch.qint8)}, "`w` is (a )?quantised"),
    "fp4": ({"w": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "float4_e2m1fn_x2"),
    "bits": ({"w": torch.zeros(4, dtype=torch.uint8).view(torch.bits8)}, "bits8"),
    "lora": ({"base.q_proj.lora_A.weight": W, "base.q_proj.lora_B.weight": W}, "merge_and_unload"),
    "gptq": ({"q.qweight": W.int(), "q.qzeros": W.int(), "q.scales": W}, "quantised checkpoint"),
    "nf4": ({"q.weight": W.byte(), "q.weight.absmax": W}, "quantised checkpoint"),
    "nf4 state": ({"q.weight.quant_state.bitsandbytes__nf4": W.byte()}, "quantised checkpoint"),
    "int8": ({"q.weight": W.char(), "q.SCB": W}, "quantised checkpoint"),
    "scales": ({"q.weight": W.char(), "q.scales": W}, "quantised checkpoint"),
    "fsdp": ({"_fsdp_wrapped_module.flat_param": W}, "FSDP"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", TORCH)
def test_bad_torch_files(tmp_path, name, legacy):
    content, message = TORCH[name]
    path = tmp_path / "model.pt"
    try:
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    except (AttributeError, KeyError) as error:
        pytest.skip(f"torch cannot write it in this format: {error}")
    if legacy and name in ("fp4", "bits", "storage"):
        message = "damaged PyTorch file|" + message  # torch itself cannot read them
    with pytest.raises(ConversionError, match=message) as caught:
        read_checkpoint(path)
    assert str(path) in caught.value.headline


class Wrapped(torch.Tensor):
    pass


def test_a_subclass_is_refused_whatever_the_process_allows(tmp_path):
    torch.save({"w": W.as_subclass(Wrapped)}, tmp_path / "m.pt")
    with torch.serialization.safe_globals([Wrapped]):
        with pytest.raises(ConversionError, match="objects other than tensors .*Wrapped"):
            read_checkpoint(tmp_path / "m.pt")


def test_dicts_inside_themselves_end(tmp_path):
    inner: dict = {"c": {"w": W}}
    inner["b"] = inner
    torch.save({"a": inner, "again": inner}, tmp_path / "m.pt")
    assert read_checkpoint(tmp_path / "m.pt").key == "a.c"


def test_learned_scales_are_no_quantised_checkpoint(tmp_path):
    save_checkpoint({"gate.weight": np.ones(3), "gate.scales": np.ones(3)}, tmp_path / "m.safetensors")
    assert len(read_checkpoint(tmp_path / "m.safetensors")) == 2


def test_all_bad_tensors_of_a_torch_file_are_listed(tmp_path):
    torch.save({"good": W, "m": W.to("meta"), "s": W.to_sparse(), "c": W.to(torch.complex64)}, tmp_path / "m.pt")
    with pytest.raises(ConversionError) as caught:
        read_checkpoint(tmp_path / "m.pt")
    assert [problem[:3] for problem in caught.value.problems] == ["`m`", "`s`", "`c`"]


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle 2", "pickle 4"])
@pytest.mark.parametrize("where", ["m.pt", "m.safetensors", "pytorch_model.bin"])
def test_a_pickle_that_runs_code_is_not_run(tmp_path, how, where):
    marker, path = tmp_path / "marker", tmp_path / where
    content = {"w": W, "x": Evil(marker)}
    if how.startswith("pickle"):
        path.write_bytes(pickle.dumps({"x": Evil(marker)}, protocol=int(how[-1])))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(ConversionError, match="mkdir") as caught:
        read_checkpoint(path)
    assert "weights_only=False" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore")
def test_torchscript_and_other_archives(tmp_path):
    script = torch.jit.trace(Net(), torch.zeros(1, 2), check_trace=False)
    torch.jit.save(script, str(tmp_path / "script.pt"))
    np.savez(tmp_path / "arrays.npz", w=np.ones(3))
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    for name, message in (("script.pt", "TorchScript"), ("arrays.npz", "npz"), ("other.pt", "torch.save did not")):
        with pytest.raises(ConversionError, match=message):
            read_checkpoint(tmp_path / name)
