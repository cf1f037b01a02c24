"""Attention weights as a picture: queries down, keys across, one panel a head."""

import math
import os
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from .._checks import shape_text
from .saving import check_destination, save_figure
from .scales import shortened

#: Lightness falls evenly, so it reads in grey and with any colour vision; 0 is nearly white.
COLOURS = "YlGnBu"
#: More labels than this on an axis are thinned, in one panel and in each of several.
MOST_LABELS = (64, 24)
#: Cells of at least this width, in inches, show their numbers, if a panel has no more than so many.
NUMBERED_WIDTH, NUMBERED_CELLS = 0.3, 64
LONGEST_LABEL = 14
#: Of a title in an inch.
TITLE_CHARACTERS = 9


def constant_of(values: np.ndarray) -> float | None:
    """The one number that all weights are: such a map looks like data and shows none."""
    finite = values[np.isfinite(values)]
    same = finite.size == values.size > 1 and float(np.ptp(finite)) <= 1e-6 * abs(float(finite.flat[0]))
    return float(finite.flat[0]) if same else None


def attention_heatmap(
    weights: Any,
    *,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    title: str = "",
    path: str | os.PathLike[str],
    force: bool = False,
) -> None:
    """Draw weights [T, S], or [N, T, S] as one panel a head on one colour scale that starts at 0, into a file.

    Args:
        weights: any floating dtype.
        query_labels: T words, of the rows; positions by default.
        key_labels: S words, of the columns; positions by default.
        title: above the panels.
        path: the picture; its suffix says which format. It appears whole or not at all.
        force: replace a file that exists.

    Raises:
        ValueError: another rank, an empty axis, labels of another number; a suffix that names no format.
        FileExistsError: `path` exists and `force` is off.
    """
    check_destination(path, force=force)
    weights = np.asarray(weights, np.float32)
    if weights.ndim not in (2, 3) or not weights.size:
        raise ValueError(f"`weights` must be [T, S] or [N, T, S], none empty, got shape {shape_text(weights.shape)}.")
    panels = weights if weights.ndim == 3 else weights[None]
    rows = _labels("query_labels", query_labels, panels.shape[-2])
    columns = _labels("key_labels", key_labels, panels.shape[-1])
    save_figure(_figure(panels, rows, columns, title), path, force=force)


def _labels(name: str, labels: Sequence[str] | None, length: int) -> list[str]:
    if labels is None:
        return [str(position) for position in range(length)]
    if len(labels) != length:
        raise ValueError(f"`{name}` must be {length} labels, one a position, got {len(labels)}.")
    return [shortened(label, LONGEST_LABEL) for label in labels]


def _figure(panels: np.ndarray, rows: list[str], columns: list[str], title: str) -> Figure:
    alone = len(panels) == 1
    across = {1: 1, 2: 2, 3: 3, 4: 2}.get(len(panels), 4)
    down = math.ceil(len(panels) / across)
    width, height = _panel_size(panels.shape, alone=alone)
    size = (across * width + 1.9, down * height + 1.3)
    lines = textwrap.wrap(title, max(int(size[0] * TITLE_CHARACTERS), 10), max_lines=3, placeholder=" …")
    if (value := constant_of(panels)) is not None:
        lines.append(f"all weights are {value:.4g}")
    longest = max(map(len, (*rows, *columns)), default=0)
    # "compressed" keeps square panels close to each other.
    size = (size[0], size[1] + 0.18 * len(lines) + 0.06 * longest)
    figure = Figure(figsize=size, layout="compressed", dpi=150)
    figure.suptitle("\n".join(lines), fontsize=11, fontweight="bold", parse_math=False)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    highest = float(np.nan_to_num(panels).max()) or 1.0
    images = []
    for head, axes in enumerate(grid.flat):
        if head >= len(panels):
            axes.set_axis_off()
            continue
        images.append(_draw(axes, panels[head], highest, width))
        _label(axes, rows, columns, width, MOST_LABELS[not alone])
        axes.set_title("" if alone else f"head {head}", fontsize=8.5, pad=3)
        axes.tick_params(labelbottom=head + across >= len(panels), labelleft=not head % across)
    figure.supxlabel("key", fontsize=9)
    figure.supylabel("query", fontsize=9)
    bar = figure.colorbar(images[0], ax=grid.ravel().tolist(), pad=0.015, fraction=0.05, aspect=30)
    bar.set_label("weight", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue] -- a Spine; matplotlib's stub says otherwise
    return figure


def _panel_size(shape: tuple[int, ...], *, alone: bool) -> tuple[float, float]:
    """Inches; cells are square unless that makes a panel too narrow or too flat."""
    cell, least, most = (0.42, 1.6, 9.0) if alone else (0.2, 1.3, 3.2)
    longest = max(shape[-1], shape[-2])
    cell = min(max(cell, least / longest), most / longest)
    return max(shape[-1] * cell, least), max(shape[-2] * cell, least * 0.35)


def _draw(axes: Axes, weights: np.ndarray, highest: float, width: float) -> AxesImage:
    aspect = "equal" if max(weights.shape) <= 8 * min(weights.shape) else "auto"
    image = axes.imshow(weights, cmap=COLOURS, vmin=0, vmax=highest, aspect=aspect, interpolation="nearest")
    axes.set_facecolor("#bbbbbb")  # shows where a weight is NaN
    axes.spines[:].set_visible(False)
    if weights.size <= NUMBERED_CELLS and width >= NUMBERED_WIDTH * weights.shape[-1]:
        for (row, column), weight in np.ndenumerate(weights):
            colour = "white" if weight > 0.55 * highest else "#222222"
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def _label(axes: Axes, rows: list[str], columns: list[str], width: float, most: int) -> None:
    """Words at the axes, every n-th where there are too many, turned as far as the room demands."""
    every_row, every_column = math.ceil(len(rows) / most), math.ceil(len(columns) / most)
    rows, columns = rows[::every_row], columns[::every_column]
    size = 8 if most == MOST_LABELS[0] else 6.5
    room = width / len(columns)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    if room > 0.009 * size * max(map(len, columns)):
        turned = {}
    elif room < 0.03 * size:
        turned = {"rotation": 90}
    axes.set_xticks(np.arange(len(columns)) * every_column, columns, fontsize=size, parse_math=False, **turned)
    axes.set_yticks(np.arange(len(rows)) * every_row, rows, fontsize=size, parse_math=False)
    axes.tick_params(length=0, pad=3)
