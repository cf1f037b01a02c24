"""Lines over the length T, one a system, in panels side by side."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from jaxattn.conditions import describe
from jaxattn.plots.saving import save_figure
from jaxattn.plots.scales import label_logarithmic

from .systems import DENSE, FLAX, JAX_NN, KERAS, OURS, TORCH, TORCH_COMPILE

Panels = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
#: Colour and marker of each system: they differ in lightness and shape too.
LOOKS = {
    OURS: ("#0b6e99", "o"),
    DENSE: ("#8fb8ca", "D"),
    TORCH: ("#d1602b", "s"),
    TORCH_COMPILE: ("#d9a78c", "P"),
    JAX_NN: ("#4d8c57", "^"),
    FLAX: ("#a4c8a0", "v"),
    KERAS: ("#b59ac4", "X"),
}


def plot_curves(panels: Panels, path: Path, *, title: str, axis: str, conditions: Mapping[str, Any]) -> None:
    """A logarithmic picture, replaced if it exists.

    Args:
        panels: heading → system → (T, value); at most two stand beside each other.
        path: the picture.
        title: above the panels.
        axis: what the values are, with their unit.
        conditions: of the measurement; in small print below.
    """
    shown = {heading: lines for heading, lines in panels.items() if lines}
    across = min(2, len(shown))
    down = -(-len(shown) // across)
    small_print = textwrap.wrap(describe(conditions), 150)
    size = (9.6 if across == 2 else 6, 0.9 + 2.9 * down + 0.13 * len(small_print))
    figure = Figure(figsize=size, layout="constrained", dpi=160)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (heading, lines) in zip(grid.flat, shown.items(), strict=False):
        _draw(axes, heading, lines)
    for axes in grid[-1]:
        axes.set_xlabel("length T, tokens", fontsize=8.5, loc="left")
    for axes in grid[:, 0]:
        axes.set_ylabel(axis, fontsize=8.5)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8.5, frameon=False)
    figure.supxlabel("\n".join(small_print), x=0.012, ha="left", fontsize=7.2, color="#555555")
    save_figure(figure, path, force=True)


def _draw(axes: Axes, heading: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    lengths = sorted({length for line in lines.values() for length, _ in line})
    for name, line in lines.items():
        colour, marker = LOOKS.get(name, ("#777777", "."))
        how: dict[str, Any] = {"linewidth": 2.2, "zorder": 3} if name == OURS else {"linewidth": 1.4, "zorder": 2}
        axes.plot(*zip(*sorted(line), strict=True), label=name, color=colour, marker=marker, markersize=5, **how)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(heading, loc="left", fontsize=9.5, fontweight="bold")
    axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    label_logarithmic(axes.yaxis, lambda value: f"{value:g}")
    axes.tick_params(labelsize=8.5)
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
