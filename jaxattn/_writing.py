"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_destination(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path, if a file may be written there.

    Raises:
        FileExistsError: a file is there and `force` is off, or a directory is.
        FileNotFoundError: the directory does not exist.
    """
    path = Path(path)
    if path.is_dir():
        raise FileExistsError(f"`{path}` is a directory: give the name of a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The directory `{path.parent}` does not exist: create it first.")
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"`{path}` exists: pass force=True (--force on the command line) to replace it.")
    return path


@contextmanager
def whole_file(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A path in the same directory and with the same suffix to write to; it takes the name `path` at the end.

    Where the block raises, nothing is left behind and an older file stays.

    Args:
        path: the file that is to appear.
        force: replace a file that exists.

    Raises:
        FileExistsError: a file is there and `force` is off, or a directory is; before the block or after it.
        FileNotFoundError: the directory does not exist.
    """
    path = check_destination(path, force=force)
    partial_path = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield partial_path
        _sync(partial_path)
        check_destination(path, force=force)
        os.replace(partial_path, path)
    finally:
        partial_path.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
