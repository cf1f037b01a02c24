"""`jaxattn inspect`: what a checkpoint holds, whether its numbers are finite, and what module it seems to be of."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .._checks import shape_text
from .._text import one_line
from ..convert.files import Checkpoint, read_checkpoint
from ..convert.flax_layout import read_metadata
from .finite import count_bad, is_floating
from .options import AsJson, File, Key, bytes_text, flag
from .recognise import INDEX, Match, recognise
from .terminal import messages, output, plain, print_json, progress, say
from .variants import VARIANTS

#: Lines of the table, unless all are asked for.
MOST = 500


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint; `nan` and `infinite` count elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    nan: int
    infinite: int

    @property
    def bad(self) -> bool:
        return bool(self.nan or self.infinite)


def command(
    file: File,
    key: Key = None,
    every: Annotated[bool, typer.Option("--all", help="A line for each tensor of repeated layers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint: names, shapes, dtypes, sizes, totals, and which known module or family it looks like.

    Every number is read; NaN and infinity are a warning, not an error. Layers that are alike share a line.
    """
    checkpoint = read_checkpoint(file, key=key)
    tensors = []
    with progress("Reading") as show:
        for done, name in enumerate(checkpoint):
            show("Reading", done, len(checkpoint))
            tensors.append(_read(checkpoint, name))
    about = read_metadata(checkpoint.metadata)
    matches = [] if about else recognise({tensor.name: tensor.shape for tensor in tensors})
    if as_json:
        print_json(_as_json(checkpoint, tensors, about, matches))
        return
    console = output()
    groups = _groups(tensors, every)
    console.print(_table(groups if every else groups[:MOST]))
    if len(groups) > MOST and not every:
        console.print(f"… and {len(groups) - MOST} more lines: --all shows them")
    say(console, _totals(checkpoint, tensors))
    for line in _described(about) if about else _looks(matches, [tensor.name for tensor in tensors]):
        say(console, line)
    bad = [tensor.name for tensor in tensors if tensor.bad]
    if bad:
        listed = ", ".join(f"`{name}`" for name in bad[:5]) + (", …" if len(bad) > 5 else "")
        sentence = f"warning: NaN or infinity in {len(bad)} of {len(tensors)} tensors: {listed}"
        say(messages(), sentence, "bold red")


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    dtype = checkpoint.dtype(name)
    floating, text = _about(dtype)
    nan, infinite = count_bad(checkpoint[name]) if floating else (0, 0)
    return Tensor(name, text, checkpoint.shape(name), checkpoint.nbytes(name), nan, infinite)


@functools.cache
def _about(dtype: np.dtype) -> tuple[bool, str]:
    """Whether a dtype is floating, and its name, which NumPy makes anew each time."""
    return is_floating(dtype), dtype.name


def _table(groups: Sequence[Sequence[Tensor]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", overflow="fold")
    for column in ("shape", "dtype", "size", "tensors"):
        table.add_column(column, justify="right", no_wrap=True)
    any_bad = any(tensor.bad for group in groups for tensor in group)
    for column in ("NaN", "infinite") if any_bad else ():
        table.add_column(column, justify="right")
    for group in groups:
        first = group[0]
        size = bytes_text(sum(tensor.bytes for tensor in group))
        cells = [shape_text(first.shape), first.dtype, size, str(len(group)) if len(group) > 1 else ""]
        bad = [str(first.nan or ""), str(first.infinite or "")] if any_bad else []
        table.add_row(plain(one_line(_shared_name(group))), *cells, *bad, style="bold red" if first.bad else None)
    return table


_INDEX = re.compile(rf"(?:^|(?<=\.)){INDEX}")


def _groups(tensors: Iterable[Tensor], every: bool) -> list[list[Tensor]]:
    """Tensors of repeated layers together, where shape and dtype agree; those with bad values alone."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        alone = every or tensor.bad
        kind = tensor.name if alone else (_INDEX.sub("#", tensor.name), tensor.dtype, tensor.shape)
        groups.setdefault(kind, []).append(tensor)
    return list(groups.values())


def _shared_name(group: Sequence[Tensor]) -> str:
    """layers.{0–5}.linear1.weight"""
    places = zip(*(_INDEX.findall(tensor.name) for tensor in group), strict=True)
    spans = [_span(sorted({int(index) for index in indices})) for indices in places]
    return _INDEX.sub(lambda match: spans.pop(0), group[0].name)


def _span(indices: list[int]) -> str:
    if len(indices) == 1:
        return str(indices[0])
    whole = indices[-1] - indices[0] == len(indices) - 1
    return f"{{{indices[0]}–{indices[-1]}}}" if whole else "{" + ",".join(map(str, indices)) + "}"


def _totals(checkpoint: Checkpoint, tensors: list[Tensor]) -> str:
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        by_dtype[tensor.dtype] += math.prod(tensor.shape)
    dtypes = ", ".join(f"{count:,} × {dtype}" for dtype, count in by_dtype.most_common())
    total = bytes_text(sum(tensor.bytes for tensor in tensors))
    where = f", under key {checkpoint.key!r}" if checkpoint.key else ""
    files = f", {len(checkpoint.files)} files" if len(checkpoint.files) > 1 else ""
    return f"{checkpoint.format}{where}{files}: {len(tensors)} tensors, {total}: {dtypes}"


def _described(about: tuple[str, str, dict[str, Any], dict[str, str]]) -> list[str]:
    option, name, settings, _ = about
    sizes = f" ({', '.join(f'{k}={v}' for k, v in settings.items() if v is not None)})" if option == "module" else ""
    return [f"In Flax's layout, written by `jaxattn convert`: {name}{sizes}"]


def _looks(matches: list[Match], names: list[str]) -> list[str]:
    """What the file looks like, and the options that `jaxattn convert` and `jaxattn parity` then need."""
    if not matches:
        return ["Looks like no module or family that is known by name here."]
    lines = []
    for match in matches[:8]:
        sizes = ", ".join(f"{k}={v}" for k, v in match.guess.settings.items() if v is not None)
        others = [name for name in names if name not in match.keys]
        covered = f"all but `{others[0]}`" if len(others) == 1 else f"{len(match.keys)} of {len(names)} tensors"
        lines.append(f"Looks like {match.known.name} ({sizes}), {covered}: {match.options}")
        if choices := _choices(match):
            assumed = ", ".join(f"{flag(name)} ({value} otherwise)" for name, value in choices.items())
            lines.append(f"  The file doesn't tell, so give what the model has: {assumed}")
    return [*lines, f"… and {len(matches) - 8} more"] if len(matches) > 8 else lines


def _choices(match: Match) -> dict[str, Any]:
    return dict(VARIANTS[match.known.name].choices) if match.known.option == "module" else {}


def _as_json(checkpoint: Checkpoint, tensors: list[Tensor], about: Any, matches: list[Match]) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "files": [str(file) for file in checkpoint.files],
        "format": checkpoint.format,
        "key": checkpoint.key,
        "metadata": checkpoint.metadata,
        "tensors": [vars(tensor) for tensor in tensors],
        "total": {"tensors": len(tensors), "bytes": sum(tensor.bytes for tensor in tensors)},
        "finite": not any(tensor.bad for tensor in tensors),
        "written_by_convert": None if about is None else {about[0]: about[1], "settings": about[2]},
        "looks_like": [
            {
                match.known.option: match.known.name,
                "prefix": match.prefix,
                "settings": match.guess.settings,
                "undetermined": match.guess.undetermined,
                "assumed": _choices(match),
                "tensors": len(match.keys),
            }
            for match in matches
        ],
    }
