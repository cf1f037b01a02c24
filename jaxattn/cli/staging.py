"""A directory of results that is there whole or not at all."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from .._writing import workspace


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
    with workspace(out.absolute().parent) as beside:
        directory, old = beside / "new", beside / "old"
        directory.mkdir()
        yield directory
        check_destination(out, force, files)
        try:
            if out.exists():
                os.rename(out, old)
            os.rename(directory, out)
        except BaseException:
            if old.exists() and not out.exists():
                os.rename(old, out)
            raise
