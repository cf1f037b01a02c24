"""Files made to cost memory or time: each is described or refused for what it costs to read the file once."""

import json
import pickle
import resource
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from jaxattn._checks import ConversionError
from jaxattn.cli.finite import count_bad
from jaxattn.cli.inspect import command
from jaxattn.convert import torch_pickle
from jaxattn.convert.files import read_checkpoint

EXPANDED = 10**10
"""Elements of a tensor that has one stored element."""


@contextmanager
def bounded(seconds: float, megabytes: int = 200) -> Iterator[None]:
    """Of this process alone: the machine may be busy."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes * 1024  # KiB
    assert time.process_time() - start < seconds


def header_bytes(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


def test_a_duplicate_after_200_000_names(tmp_path):
    pairs = [f'"k{number}":"v"' for number in range(200_000)] + ['"k199999":"w"']
    tensor = '"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = "{" + tensor + ',"__metadata__":{' + ",".join(pairs) + "}}"
    (tmp_path / "m.safetensors").write_bytes(header_bytes(text, b"x"))
    with bounded(3), pytest.raises(ConversionError, match="'k199999' twice|duplicate"):
        read_checkpoint(tmp_path / "m.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map":{' + ",".join(pairs) + "}}")
    with bounded(3), pytest.raises(ConversionError, match="'k199999' twice"):
        read_checkpoint(tmp_path / "model.safetensors.index.json")


def write_pickle(path, program, zipped):
    """A PyTorch file whose pickle is this program."""
    if not zipped:
        path.write_bytes(
            pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + program
        )
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", program)
        archive.writestr("m/version", "3\n")


def call(name: str, argument: bytes) -> bytes:
    module, _, function = name.rpartition(".")
    return b"\x80\x02c" + module.encode() + b"\n" + function.encode() + b"\n" + argument + b"\x85R."


BILLIONS = b"\x8a\x08" + (6_000_000_000).to_bytes(8, "little")
PROGRAMS = {
    "bytearray": call("__builtin__.bytearray", BILLIONS),
    "bytes": call("builtins.bytes", BILLIONS),
    "range": call("builtins.list", call("builtins.range", BILLIONS)[2:-1]),
    "tensor": call("torch.Tensor", BILLIONS),
    "zeros": call("torch.zeros", BILLIONS),
    "storage": call("torch.FloatStorage", BILLIONS),
    "system": call("os.system", b"X\x08\0\0\0touch ran"),
    "deep lists": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 20_000 + b".",
    "deep marks": b"\x80\x02" + b"(" * 20_000 + b"t" * 20_000 + b".",
    "many lists": b"\x80\x02]" + b"]a" * 20_000 + b".",
    "far memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "long text": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "long number": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
    "buffers": b"\x80\x05\x97.",
    "frames": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f].",
    "extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pickles_that_would_make_much_or_run_something(tmp_path, monkeypatch, name, zipped):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_pickle, "MAX_OBJECTS", 50_000)  # of 3,000,000, which take a second
    write_pickle(tmp_path / "m.pt", PROGRAMS[name], zipped)
    with bounded(5), pytest.raises(ConversionError):
        read_checkpoint(tmp_path / "m.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int8])
def test_a_tensor_that_shows_one_element_in_1e10_places(tmp_path, capsys, dtype, zipped):
    one = torch.tensor([float("nan") if dtype.is_floating_point else 1]).to(dtype)
    tensors = {"in_proj_weight": one.expand(EXPANDED), "square": one.expand(10**5, 10**5)}
    torch.save(tensors, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    with bounded(6):
        command(tmp_path / "m.pt", as_json=True)
        shown = {tensor["name"]: tensor for tensor in json.loads(capsys.readouterr().out)["tensors"]}
        checkpoint = read_checkpoint(tmp_path / "m.pt")
        assert all(checkpoint[name].size == EXPANDED == shown[name]["bytes"] // dtype.itemsize for name in tensors)
    assert shown["square"]["nan"] == (EXPANDED if dtype.is_floating_point else 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_finite_is_counted_where_it_is_seen(dtype):
    generator = np.random.default_rng(0)
    stored = generator.choice([0.0, 1.0, np.nan, np.inf, -np.inf], 60).astype(torch_name(dtype))
    for shape, steps in [((60,), (1,)), ((5, 4), (12, 3)), ((20, 30), (1, 1)), ((7, 3, 9, 6), (2, 0, 3, 1)), ((), ())]:
        strides = tuple(step * stored.itemsize for step in steps)
        array = np.lib.stride_tricks.as_strided(stored, shape, strides)
        expected = array.astype(np.float64)
        assert count_bad(array) == (np.isnan(expected).sum(), np.isinf(expected).sum()), shape
    assert count_bad(stored[:0]) == (0, 0)


def torch_name(dtype):
    import ml_dtypes

    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def test_windows_of_1e10_elements_over_a_small_storage():
    stored = np.zeros(200_000, np.float32)
    stored[0] = stored[100] = np.nan
    windows = np.lib.stride_tricks.as_strided(stored, (10**5, 10**5), (4, 4))
    with bounded(2):
        assert count_bad(windows) == (1 + 101, 0)
