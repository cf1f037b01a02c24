"""Figures into files: a picture appears whole or not at all, and replaces another one only when told to."""

import os
import secrets
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FORMATS = frozenset(FigureCanvasAgg.get_supported_filetypes())


def check_destination(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path, if a picture may be written there.

    Raises:
        ValueError: a suffix that names no format of pictures.
        FileExistsError: a file is there and `force` is off, or a directory is.
        FileNotFoundError: the directory does not exist.
    """
    path = Path(path)
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        listed = ", ".join(sorted(FORMATS))
        raise ValueError(f"`path` must end in a picture format ({listed}), got {path.name!r}.")
    if path.is_dir():
        raise FileExistsError(f"`{path}` is a directory: give the name of a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The directory `{path.parent}` does not exist: create it first.")
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"`{path}` exists: pass force=True (--force on the command line) to replace it.")
    return path


def save_figure(figure: Figure, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write beside the destination under another name, then rename."""
    path = check_destination(path, force=force)
    partial_path = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        figure.savefig(partial_path)
        check_destination(path, force=force)
        os.replace(partial_path, path)
    finally:
        partial_path.unlink(missing_ok=True)
