"""A directory of results that is there whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path


def check_destination(out: Path, force: bool, files: Set[str]) -> None:
    """Raise unless the directory may be written.

    It is a new one, or an earlier demo's: one that holds `files`, all of them, and nothing else. With `force` some of
    them may be missing.
    """
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"The directory `{out.parent}` does not exist: create it first.")
    if not os.path.lexists(out):
        return
    held = {entry.name for entry in out.iterdir()} if out.is_dir() and not out.is_symlink() else None
    if held is None or not held <= files:
        raise FileExistsError(f"`{out}` holds more than a demo, so it is not replaced: give another --out.")
    if held != files and not force:
        raise FileExistsError(f"`{out}` exists and is no whole demo: pass --force to replace it, or another --out.")


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
