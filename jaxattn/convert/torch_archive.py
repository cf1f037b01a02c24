"""The zip archive that torch.save writes: where the bytes of each record lie, by name."""

import mmap
import re
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .._checks import ConversionError

_ARCHIVES = (
    (r"(^|/)(constants\.pkl$|code/)", "is a TorchScript archive: torch.jit.load it and save its state_dict()"),
    (r"(^|/)archive_format$", "is a torch.export archive: torch.export.load it and save its state_dict"),
    (r"^model\.weights\.h5$", "is a Keras archive: export its weights as safetensors first"),
    (r"\.npy$", "is a NumPy .npz archive: load it with numpy.load and pass a dict of arrays"),
)


def archive_records(path: Path, mapping: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Start and size of every record, by its name inside the archive's one folder ("data.pkl", "data/0").

    Raises:
        ConversionError: truncated, or another kind of zip archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            starts = _data_starts(records, mapping, archive.start_dir)
    except Exception as error:  # zipfile raises seven kinds of error on damaged archives
        raise ConversionError(
            f"`{path}` is a damaged or truncated zip archive ({error}): download or save it again."
        ) from error
    _refuse_others(path, starts)
    if any(record.compress_type or record.file_size != record.compress_size for record in records):
        raise ConversionError(f"`{path}` is a compressed archive, which torch.save never writes: save it again.")
    folder = records[0].filename.partition("/")[0] + "/"  # torch looks nowhere else
    if f"{folder}data.pkl" not in starts:
        raise ConversionError(f"`{path}` is a zip archive that torch.save did not write: it has no data.pkl.")
    return {
        record.filename.removeprefix(folder): (starts[record.filename], record.file_size)
        for record in records
        if record.filename.startswith(folder)
    }


def _refuse_others(path: Path, names: Iterable[str]) -> None:
    together = "\n".join(names)
    for pattern, sentence in _ARCHIVES:
        if re.search(pattern, together, re.MULTILINE):
            raise ConversionError(f"`{path}` {sentence}.")


def _data_starts(records: list[zipfile.ZipInfo], mapping: mmap.mmap, directory: int) -> dict[str, int]:
    """Where the bytes of each record begin, by its local header, which torch.load trusts when it maps a file.

    Raises:
        zipfile.BadZipFile: a record does not end where the next one begins, or two have one name.
    """
    starts: dict[str, int] = {}
    ordered = sorted(records, key=lambda record: record.header_offset)
    for record, following in zip(ordered, [*(r.header_offset for r in ordered[1:]), directory], strict=True):
        signature, length, extra = struct.unpack("<4s22xHH", mapping[record.header_offset : record.header_offset + 30])
        start = record.header_offset + 30 + length + extra
        name = record.orig_filename.encode("utf-8" if record.flag_bits & 0x800 else "cp437")
        end = start + record.compress_size
        descriptor = b"PK\x07\x08" + record.CRC.to_bytes(4, "little")  # may stand between two records
        ends = end == following or (end <= following and mapping[end : end + 8] == descriptor)
        named = mapping[record.header_offset + 30 : start - extra] == name
        if signature != b"PK\x03\x04" or not named or not ends or record.flag_bits & 1:
            raise zipfile.BadZipFile(f"the header of {record.filename} is damaged")
        starts[record.filename] = start
    if len({name.lower() for name in starts}) < len(records):  # torch's reader doesn't tell them apart
        raise zipfile.BadZipFile("two of its records have one name")
    return starts
