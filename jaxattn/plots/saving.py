"""Figures into files: a picture appears whole or not at all, and replaces another one only when told to."""

import os
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import _writing

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
    return _writing.check_destination(path, force=force)


def save_figure(figure: Figure, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a picture; its suffix tells the format."""
    with _writing.whole_file(check_destination(path, force=force), force=force) as partial_path:
        figure.savefig(partial_path)
