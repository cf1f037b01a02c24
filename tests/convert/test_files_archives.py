"""PyTorch files with a damaged archive."""

import resource
import sys
import zipfile

import numpy as np
import pytest
import torch

from jaxattn._checks import ConversionError
from jaxattn.convert.files import read_checkpoint, save_checkpoint

W = torch.arange(12.0).reshape(3, 4)


def test_truncated_torch_files(tmp_path):
    path = tmp_path / "m.pt"
    for legacy in (False, True):
        torch.save({"w": W}, path, _use_new_zipfile_serialization=not legacy)
        content = path.read_bytes()
        for length in (len(content) - 1, len(content) // 2, 100, 10, 1):
            path.write_bytes(content[:length])
            with pytest.raises(ConversionError, match="damaged|truncated|not a checkpoint we know"):
                read_checkpoint(path)


def test_a_storage_larger_than_its_record_is_refused(tmp_path):
    """Memory-mapped, torch would hand out whatever lies behind the record."""
    torch.save({"w": torch.arange(4.0)}, tmp_path / "m.pt")
    content = (tmp_path / "m.pt").read_bytes()
    longer = content.replace(b"K\x04t", b"K\x50t", 1).replace(b"K\x04\x85", b"K\x50\x85", 1)
    assert longer != content
    (tmp_path / "m.pt").write_bytes(longer)
    with pytest.raises(ConversionError, match="do not match their records"):
        read_checkpoint(tmp_path / "m.pt")


def test_a_shifted_record_is_refused(tmp_path):
    """torch.load finds a record by the lengths in its local header and would read from the wrong place."""
    torch.save({"w": W}, tmp_path / "m.pt")
    content = bytearray((tmp_path / "m.pt").read_bytes())
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        at = next(r.header_offset for r in archive.infolist() if r.filename.endswith("data/0"))
    content[at + 28] -= 4
    (tmp_path / "m.pt").write_bytes(content)
    with pytest.raises(ConversionError, match="header of m/data/0 is damaged"):
        read_checkpoint(tmp_path / "m.pt")


@pytest.mark.parametrize("how", ["compressed", "claims a terabyte"])
def test_records_must_lie_as_they_are(tmp_path, how):
    torch.save({"w": W}, tmp_path / "stored.pt")
    kind = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(tmp_path / "stored.pt") as old, zipfile.ZipFile(tmp_path / "m.pt", "w") as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record), compress_type=kind)
        if how != "compressed":
            for record in new.infolist():
                record.file_size = record.compress_size = 2**40
    with pytest.raises(ConversionError, match="compressed archive|damaged or truncated"):
        read_checkpoint(tmp_path / "m.pt")


def test_a_file_of_the_other_byte_order(tmp_path):
    torch.save({"w": W}, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for record in old.infolist():
            data = old.read(record)
            data = b"big" if record.filename.endswith("byteorder") else data
            data = W.numpy().astype(">f4").tobytes() if "/data/0" in record.filename else data
            new.writestr(record.filename, data)
    assert read_checkpoint(tmp_path / "big.pt")["w"].tolist() == W.tolist()


def test_claims_are_not_believed(tmp_path):
    """A header or a pickle that announces gigabytes makes nothing large."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    header = b'{"w":{"dtype":"F32","shape":[4294967296],"data_offsets":[0,17179869184]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    torch.save({"w": torch.arange(4.0)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "m.pt").read_bytes()
    for old in (b"K\x04N", b"K\x04\x85"):
        content = content.replace(old, b"J\xff\xff\xff\x7f" + old[2:], 1)
    assert content.count(b"\xff\xff\xff\x7f") == 2
    (tmp_path / "m.pt").write_bytes(content)
    for name in ("m.safetensors", "m.pt"):
        with pytest.raises(ConversionError):
            read_checkpoint(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_writing_without_torch_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"jaxattn\[torch\]"):
        save_checkpoint({"w": np.ones(3)}, tmp_path / "m.pt")
