"""PyTorch files give torch.load's tensors, one by one: by the name of their storage, whatever else fits as well."""

import importlib
import inspect
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from jaxattn._checks import ConversionError
from jaxattn.convert.files import read_checkpoint
from jaxattn.convert.stored import ITEMSIZE
from jaxattn.convert.torch_names import _CALLS

REBUILT = [f"_rebuild_{what}" for what in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state")]
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def same_bits(array, tensor):
    expected = tensor.detach().resolve_neg().contiguous()
    return (
        array.shape == tuple(tensor.shape) and array.tobytes() == expected.view(-1).view(torch.uint8).numpy().tobytes()
    )


def assert_like_torch(path, keys=(None,)):
    """Every tensor under these keys is the one that torch.load has there."""
    loaded = torch.load(path, weights_only=True)
    for key in keys:
        expected = loaded if key is None else loaded[key]
        checkpoint = read_checkpoint(path, key=key)
        assert list(checkpoint) == list(expected)
        for name, tensor in expected.items():
            assert same_bits(checkpoint[name], tensor), (key, name)


def layers(seed):
    generator = torch.Generator().manual_seed(seed)
    return {f"layers.{i}.{part}": torch.randn(7, 5, generator=generator) for i in range(3) for part in ("q", "k")}


@FORMATS
@pytest.mark.parametrize("order", list(itertools.permutations(["model", "ema", "optimizer", "rest"])), ids="-".join)
def test_state_dicts_of_one_shape_beside_each_other(tmp_path, order, zipped):
    """All storages have one size: only the file's own names tell the model's from the others'."""
    moments = {i: {"exp_avg": tensor} for i, tensor in enumerate(layers(2).values())}
    parts = {
        "model": layers(0),
        "ema": layers(1),
        "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [*moments]}]},
        "rest": list(layers(3).values()),
    }
    torch.save({name: parts[name] for name in order}, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    assert_like_torch(tmp_path / "m.pt", ["model", "ema"])


@FORMATS
def test_views_and_shared_storages(tmp_path, zipped):
    base, other = torch.randn(6, 5), torch.randn(6, 5)
    tensors = {
        "last": base[5],
        "other": other,
        "columns": base[:, 1:3],
        "base": base,
        "transposed": other.T,
        "again": base,
        "windows": torch.arange(9.0).unfold(0, 3, 2),
        "negative": torch.complex(base, other).conj().imag,
        "expanded": torch.randn(5, 1).expand(5, 4),
        "empty": base[:0],
        "parameter": torch.nn.Parameter(other.clone()),
    }
    torch.save(tensors, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    assert_like_torch(tmp_path / "m.pt")


@FORMATS
def test_dtypes_without_a_storage_of_their_own(tmp_path, zipped):
    tensors = {"float8": torch.randn(5, 3).to(torch.float8_e5m2), "unsigned": torch.arange(5).to(torch.uint16)[1:4]}
    torch.save(tensors, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    checkpoint = read_checkpoint(tmp_path / "m.pt")
    assert all(same_bits(checkpoint[name], tensor) for name, tensor in tensors.items())
    if zipped:  # torch.load(weights_only=True) fails on the older format
        assert_like_torch(tmp_path / "m.pt")


def rewrite(path, change, target=None):
    """The archive again, each record through `change(name, bytes)`; None leaves it out."""
    reader = torch._C.PyTorchFileReader(str(path))
    records = {name: bytes(reader.get_record(name)) for name in reader.get_all_records()}
    writer = torch._C.PyTorchFileWriter(str(target or path))
    for name, content in records.items():
        if not name.startswith(".data/") and name not in ("version", ".format_version", ".storage_alignment"):
            for new_name, new in change(name, content):
                writer.write_record(new_name, new, len(new))
    writer.write_end_of_file()


def test_records_in_another_order_and_of_nobody(tmp_path):
    torch.save({"model": layers(0), "ema": layers(1)}, tmp_path / "m.pt")
    count = len(layers(0)) * 2
    noise = np.random.default_rng(0).bytes(7 * 5 * 4)
    extra = [(f"data/{number}", noise) for number in range(count, count + 3)]
    late: list = []

    def change(name, content):
        if name.startswith("data/"):
            late.insert(0, (name, content))
            return extra + late if len(late) == count else []
        return [(name, content)]

    rewrite(tmp_path / "m.pt", change, tmp_path / "other.pt")
    expected = torch.load(tmp_path / "m.pt", weights_only=True)
    for key in ("model", "ema"):
        checkpoint = read_checkpoint(tmp_path / "other.pt", key=key)
        assert all(same_bits(checkpoint[name], tensor) for name, tensor in expected[key].items())


@pytest.mark.parametrize("how", ["missing", "longer", "shorter"])
def test_each_storage_is_one_record(tmp_path, how):
    torch.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "m.pt")
    changed = {"missing": [], "longer": [("data/1", bytes(16))], "shorter": [("data/1", bytes(8))]}[how]
    rewrite(
        tmp_path / "m.pt", lambda name, content: changed if name == "data/1" else [(name, content)], tmp_path / "o.pt"
    )
    with pytest.raises(ConversionError, match="do not match their records"):
        read_checkpoint(tmp_path / "o.pt")


def test_a_storage_without_data_is_refused(tmp_path):
    """torch hands out memory that nobody has written to."""
    torch.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "m.pt").read_bytes()
    keys = content.rindex(b"\x80\x02]")
    end = content.index(b".", keys) + 1
    numbers = content[keys + 2 : end]
    one = b"\x80\x02" + numbers[: numbers.index(b"(")] + numbers[numbers.index(b"(") + 1 : numbers.rindex(b"X")] + b"a."
    (tmp_path / "m.pt").write_bytes(content[:keys] + one + content[end : end + 20])
    assert torch.load(tmp_path / "m.pt", weights_only=True).keys() == {"a", "b"}
    with pytest.raises(ConversionError, match="no data for 1 of the storages"):
        read_checkpoint(tmp_path / "m.pt")


@FORMATS
def test_attributes_in_python_change_no_tensor(tmp_path, zipped):
    tensors = torch.nn.Linear(2, 2).state_dict()
    tensors |= {"p": torch.nn.Parameter(torch.randn(3, 2)), "t": torch.randn(4)}
    p, t = tensors["p"], tensors["t"]
    for owner, name, value in [(tensors, "lines", 5), (p, "count", 0), (t, "count", 0), (p, "partition_dim", 1)]:
        setattr(owner, name, value)
    torch.save(tensors, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    content = (tmp_path / "m.pt").read_bytes()
    assert content.count(b"lines") == 1 and content.count(b"count") == 1
    (tmp_path / "m.pt").write_bytes(content.replace(b"lines", b"items").replace(b"count", b"numel"))
    checkpoint = read_checkpoint(tmp_path / "m.pt")
    assert list(checkpoint) == ["weight", "bias", "p", "t"]
    assert all(same_bits(checkpoint[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", ["data", "real", "imag", "grad", "requires_grad", "shape", "T", "__class__", "dtype"])
def test_an_attribute_of_torch_itself_is_refused(tmp_path, name):
    """torch.load sets it: `data` exchanges the values."""
    parameter: Any = torch.nn.Parameter(torch.ones(3))
    parameter.extra = torch.zeros(3)
    torch.save({"w": parameter}, tmp_path / "m.pt")
    old, new = b"X\x05\0\0\0extra", b"X" + len(name).to_bytes(4, "little") + name.encode()
    rewrite(tmp_path / "m.pt", lambda name, content: [(name, content.replace(old, new))], tmp_path / "o.pt")
    with pytest.raises(ConversionError, match=f"'{name}', which is torch's own"):
        read_checkpoint(tmp_path / "o.pt")


def test_every_attribute_that_changes_a_tensor_is_refused(tmp_path):
    """Whatever torch lets one set on a parameter: its bits stay, or the name is among those that are refused."""
    from jaxattn.convert.torch_names import _OF_TORCH

    for name in dir(torch.Tensor):
        parameter, value = torch.nn.Parameter(torch.ones(3)), torch.zeros(3)
        try:
            setattr(parameter, name, value)
        except Exception:  # it can't be set, so torch.load fails
            continue
        if not torch.equal(torch.Tensor.detach(parameter), torch.ones(3)):
            assert name in _OF_TORCH


def test_sizes_of_elements_are_torchs():
    for name, size in ITEMSIZE.items():
        dtype = getattr(torch, name, None)
        if dtype is not None:
            assert dtype.itemsize == size, name


def test_a_key_that_names_two_dicts(tmp_path):
    torch.save({"a.b": layers(0), "a": {"b": layers(1)}, "a.c": layers(2)}, tmp_path / "m.pt")
    with pytest.raises(ConversionError, match="names 2 entries"):
        read_checkpoint(tmp_path / "m.pt", key="a.b")
    assert same_bits(read_checkpoint(tmp_path / "m.pt", key="a.c")["layers.0.q"], layers(2)["layers.0.q"])


def test_reading_needs_no_torch(tmp_path):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "m.pt")
    code = "import sys; sys.modules['torch'] = None; from jaxattn.convert.files import read_checkpoint as read"
    code += f"; print(read({str(tmp_path / 'm.pt')!r})['w'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[0. 1. 2.]"


@pytest.mark.parametrize("name", REBUILT)
def test_a_call_takes_as_many_arguments_as_torchs(name):
    """What torch fails on is damage: too few or too many."""
    ours = inspect.signature(_CALLS[f"torch._utils.{name}"]).parameters.values()
    theirs = inspect.signature(getattr(importlib.import_module("torch._utils"), name)).parameters.values()
    empty = inspect.Parameter.empty
    assert [p.default is empty for p in ours] == [p.default is empty for p in theirs]
