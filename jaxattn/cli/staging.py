"""A directory of results that is there whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path


def check_destination(out: Path, force: bool, files: Set[str]) -> None:
    """Raise unless the directory may be written: a new one, or with `force` one that holds `files` and nothing else."""
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"The directory `{out.parent}` does not exist: create it first.")
    if not os.path.lexists(out):
        return
    if not force:
        raise FileExistsError(f"`{out}` exists: pass --force to replace it, or --out for another one.")
    if out.is_symlink() or not out.is_dir() or not {entry.name for entry in out.iterdir()} <= files:
        raise FileExistsError(f"`{out}` holds more than a demo, so --force does not replace it: give another --out.")


@contextmanager
def staged(out: Path, force: bool, files: Set[str]) -> Iterator[Path]:
    """A directory beside `out` that takes its place at the end, or disappears when something is raised."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as beside:
        directory = Path(beside) / "new"
        directory.mkdir()
        yield directory
        check_destination(out, force, files)
        if out.exists():
            os.rename(out, Path(beside) / "old")
        os.rename(directory, out)
