"""2,000 mutations of checkpoints: each loads what the file says or raises our error, nothing else, and nothing runs."""

import io
import json
import os
import random
import struct
import tempfile
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from jaxattn._checks import ConversionError
from jaxattn.convert.files import read_checkpoint, save_checkpoint

SMALL = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.ones(4).astype(ml_dtypes.bfloat16),
    "s": np.array(2.5, np.float64),
}


def runs(count):
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


edits = st.integers(0, 2**32)
"""Seeds: hypothesis' own numbers crowd at 0, and would leave the middle and the end of a file alone."""


def mutate(content, seed):
    """Bytes with some flipped, replaced, put in, cut out, cut off or doubled, at places spread over the whole file."""
    rng, content = random.Random(seed), bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        how = rng.choice(["flip", "flip", "set", "set", "digit", "insert", "delete", "truncate", "repeat"])
        at, value, length = rng.randrange(len(content) + 1), rng.randrange(256), rng.randrange(1, 9)
        if how == "flip":
            content[at : at + 1] = bytes(byte ^ 1 << value % 8 for byte in content[at : at + 1])
        elif how == "set":
            content[at : at + 1] = bytes([value])
        elif how == "digit":  # a number in the text, changed into another
            digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
            if digits:
                content[rng.choice(digits)] = ord("0") + value % 10
        elif how == "insert":
            content[at:at] = bytes([value]) * length
        elif how == "delete":
            del content[at : at + length]
        elif how == "truncate":
            del content[at:]
        else:
            content[at:at] = content[at : at + length]
    return bytes(content)


def read_all(path):
    """Every tensor, or None when our error came. Huge expanded tensors are looked at, not copied."""
    try:
        checkpoint = read_checkpoint(path)
        found = {name: checkpoint[name] for name in checkpoint}
    except ConversionError as error:
        assert str(error)
        return None
    for name, array in found.items():
        assert array.dtype == checkpoint.dtype(name) and array.shape == checkpoint.shape(name)
        assert array.nbytes == checkpoint.nbytes(name)
        if array.size:
            assert [array.flat[0], array.flat[-1]]
    return found


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def check_safetensors(path, content):
    """What we read is what the library reads from the same bytes."""
    path.write_bytes(content)
    found = read_all(path)
    if found is not None:
        expected = dict(safetensors.deserialize(content))
        assert found.keys() == expected.keys()
        for name, array in found.items():
            assert array.tobytes() == bytes(expected[name]["data"]) and list(array.shape) == expected[name]["shape"]


@runs(600)
@given(changes=edits)
def test_safetensors_bytes(folder, changes):
    check_safetensors(folder / "m.safetensors", mutate(save(SMALL), changes))


numbers = st.sampled_from([0, 1, 4, 8, 24, 32, 40, -1, 2**31, 2**40, 2**63, 2**64, 1.5, True, None, "4", [], {}])
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F64", "U8", "BOOL", "C64", "F4", "F8_E8M0", "f32", "Q4", 4, None]),
        "shape": st.one_of(st.lists(numbers, max_size=4), st.just([2, 3]), numbers),
        "data_offsets": st.one_of(st.lists(numbers, min_size=2, max_size=2), numbers, st.just([0, 24])),
        "more": numbers,
    },
)
whole = st.sampled_from([("F32", [2, 3], 24), ("BF16", [12], 24), ("U8", [0, 7], 0), ("F64", [], 8), ("C64", [3], 24)])


@runs(400)
@given(data=st.data())
def test_safetensors_headers(folder, data):
    names = st.sampled_from(["a", "b", "é", "", "__metadata__", "a\0", "\ud800", "lora_A", "w.absmax"])
    header, size = {}, 0
    for name in data.draw(st.lists(names, max_size=3, unique=True)):
        dtype, shape, length = data.draw(whole)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, size + length]}
        if data.draw(st.booleans()):
            header[name] |= data.draw(entries)
        size += length
    text = json.dumps(header).encode()
    length = data.draw(st.sampled_from([len(text)] * 5 + [0, len(text) - 1, len(text) + 1, 2**30, 2**63, 99_999_999]))
    check_safetensors(folder / "h.safetensors", struct.pack("<Q", length) + text + bytes(size))


class Evil:
    """Unpickled for real it makes a folder in the working directory."""

    def __reduce__(self):
        return os.mkdir, ("marker-of-code-that-ran",)


def torch_bytes(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


W = torch.arange(6.0).reshape(2, 3)
SOURCES = [
    torch_bytes({"a": W, "b.weight": W.T.bfloat16(), "s": torch.tensor(2.5)}),
    torch_bytes({"epoch": 1, "model": {"a": W}}),
    torch_bytes({"a": W, "x": Evil()}),
    torch_bytes({"a": W, "b": W[0]}, _use_new_zipfile_serialization=False),
    torch_bytes({"a": W, "x": Evil()}, _use_new_zipfile_serialization=False),
]


def rewrite_pickle(content, changes):
    """Mutate data.pkl inside the archive and write valid checksums, so that the damage reaches the unpickler."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for record in old.infolist():
            data = old.read(record)
            new.writestr(record.filename, mutate(data, changes) if record.filename.endswith("data.pkl") else data)
    return out.getvalue()


@pytest.mark.filterwarnings("ignore")
@runs(500)
@given(source=st.integers(0, len(SOURCES) - 1), changes=edits, inside=st.booleans())
def test_torch_files(folder, source, changes, inside):
    content = SOURCES[source]
    content = rewrite_pickle(content, changes) if inside and content[:2] == b"PK" else mutate(content, changes)
    check_torch(folder / "m.pt", content)


def torch_reads(content):
    """torch.load's value. Where torch refuses the container (its counts of disks and files, a name that nobody asks
    for), that of the records written anew, whose checksums zipfile holds against their bytes."""
    try:
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except (RuntimeError, UnicodeDecodeError):
        assert content[:2] == b"PK"
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        new.writestr("archive/version", "3\n")
        for name in old.namelist():
            if name in ("archive/data.pkl", "archive/byteorder") or name.startswith("archive/data/"):
                new.writestr(name, old.read(name))
    return torch.load(io.BytesIO(out.getvalue()), weights_only=True, map_location="cpu")


def check_torch(path, content):
    """What we read is what torch.load reads from the same bytes, in both formats, and nothing runs."""
    path.write_bytes(content)
    found = read_all(path)
    assert not os.path.exists("marker-of-code-that-ran")
    if found is not None:
        key = read_checkpoint(path).key
        expected = torch_reads(content)
        expected = expected[key] if key else expected
        for name, array in found.items():
            if array.size < 1000:
                assert array.tobytes() == expected[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


INDEX = json.dumps({"metadata": {"total_size": 40}, "weight_map": {"a": "1.safetensors", "s": "2.safetensors"}})


@runs(200)
@given(changes=edits)
def test_indices(folder, changes):
    check_index(folder / "sharded", mutate(INDEX.encode(), changes))


def check_index(directory, content):
    directory.mkdir(exist_ok=True)
    if not (directory / "2.safetensors").exists():
        save_checkpoint({"a": SMALL["a"]}, directory / "1.safetensors")
        save_checkpoint({"s": SMALL["s"]}, directory / "2.safetensors")
    (directory / "model.safetensors.index.json").write_bytes(content)
    found = read_all(directory / "model.safetensors.index.json")
    for name, array in (found or {}).items():
        assert array.tobytes() == SMALL[name].tobytes()


leaves = st.one_of(
    st.sampled_from([W, W.T, W.bfloat16(), W.to_sparse(), W.to("meta"), W.to(torch.complex64), W.int(), W[:0]]),
    st.sampled_from([1, 0.5, None, "text", b"x", True, [], (), {}, {1: W}, [W], {"state": {}, "param_groups": []}]),
)
tensor_dicts = st.dictionaries(st.sampled_from(["a", "b.weight", "state", "model", "", 7]), leaves, max_size=3)
structures = st.recursive(
    st.one_of(tensor_dicts, leaves),
    lambda inner: st.dictionaries(st.sampled_from(["model", "ema", "state", "param_groups", "a.b"]), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.filterwarnings("ignore")
@runs(150)
@given(content=structures, key=st.sampled_from([None, None, "model", "ema.model", "", "a.b"]))
def test_structures_read(folder, content, key):
    path = folder / "structure.pt"
    torch.save(content, path)
    try:
        checkpoint = read_checkpoint(path, key=key)
    except ConversionError:
        return
    chosen = content
    for part in (
        []
        if checkpoint.key is None
        else [checkpoint.key]
        if checkpoint.key in content
        else (
            checkpoint.key.split(".", 1)
            if checkpoint.key.split(".", 1)[0] in content
            else checkpoint.key.rsplit(".", 1)
        )
    ):
        chosen = chosen[part]
    assert checkpoint.keys() == chosen.keys() and len(checkpoint) > 0
    for name, array in checkpoint.items():
        assert torch.equal(torch.from_numpy(array.astype(np.float64)), chosen[name].double())


values = st.one_of(
    leaves,
    st.sampled_from([SMALL["a"], SMALL["a"].T, SMALL["b.weight"], np.array("x"), np.ones(2, np.longdouble), object()]),
    st.floats(width=32),
    st.lists(st.one_of(st.floats(), st.lists(st.integers())), max_size=3),
)
names = st.one_of(st.text(max_size=4), st.sampled_from(["a", "__metadata__", "\ud800", 3, None, ("a",)]))


@pytest.mark.filterwarnings("ignore")
@runs(150)
@given(content=st.dictionaries(names, values, max_size=3), suffix=st.sampled_from([".safetensors", ".pt"]))
def test_structures_saved(folder, content, suffix):
    path = folder / f"saved{suffix}"
    path.unlink(missing_ok=True)
    try:
        save_checkpoint(content, path)
    except ConversionError:
        assert not path.exists()
        return
    checkpoint = read_checkpoint(path)
    assert checkpoint.keys() == content.keys()
    for name, array in checkpoint.items():
        expected = content[name].float().numpy() if isinstance(content[name], torch.Tensor) else content[name]
        assert np.array_equal(array.astype(np.float64), np.asarray(expected).astype(np.float64), equal_nan=True)


def test_the_sum_of_mutations():
    tests = [test for name, test in globals().items() if name.startswith("test_") and hasattr(test, "hypothesis")]
    assert sum(test._hypothesis_internal_use_settings.max_examples for test in tests) == 2000
