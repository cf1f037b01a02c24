"""Times of the compared candidates, as points with their spread."""

import os
import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..conditions import describe, duration, factor, withheld
from ..interleaved import COMPILED, FLAX_EAGER, FLAX_JIT, TORCH_EAGER
from .saving import check_destination, save_figure
from .scales import label_logarithmic, shortened

#: As `Timing.to_json()` gives it.
TimingJson = Mapping[str, Any]
#: The axis is logarithmic when slowest and fastest are further apart than this factor.
LINEAR_UP_TO = 6
COLOURS = {COMPILED: "#08465f", FLAX_JIT: "#0b6e99", FLAX_EAGER: "#8fb8ca", TORCH_EAGER: "#d1602b"}
OTHER = "#d9a78c"
#: Pixels that stay free at the edge.
EDGE = 8
LONGEST_NAME = 40


def plot_speed(
    groups: Mapping[str, Mapping[str, TimingJson]],
    path: str | os.PathLike[str],
    *,
    title: str,
    conditions: Mapping[str, Any],
    force: bool = False,
) -> None:
    """One line a candidate, fastest first within its group: median, quartiles, and how much faster than it the jit is.

    Times that other programs disturbed too much to be shown in a table are not drawn either; the picture says why.

    Args:
        groups: heading → candidate → its timing, all of one heading from the same rounds.
        path: the image; the suffix says which format.
        title: above the plot.
        conditions: of the measurement, as `timing.conditions` gives them; in small print below.
        force: replace a file that exists.

    Raises:
        FileExistsError: `path` exists and `force` is off.
        FileNotFoundError: its directory does not exist.
        ValueError: a suffix that no image format has.
    """
    path = check_destination(path, force=force)
    lines = _lines(groups)
    small_print = textwrap.wrap(describe(conditions), 150)
    height = 1.2 + 0.24 * len(lines) + 0.13 * len(small_print)
    figure = Figure(figsize=(9, height), layout="constrained", dpi=160)
    figure.suptitle("\n".join(textwrap.wrap(title, 90)), x=0.012, ha="left", fontsize=12.5, fontweight="bold")
    axes = figure.add_subplot()
    reason = withheld(conditions)
    if reason is None:
        _draw(axes, lines)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"{reason}\nNone are drawn.", ha="center", va="center", fontsize=10)
    figure.supxlabel("\n".join(small_print), x=0.012, ha="left", fontsize=7.2, color="#555555")
    if reason is None:
        _make_room(figure, axes)
    save_figure(figure, path, force=force)


def _make_room(figure: Figure, axes: Axes) -> None:
    """Widen the time axis until the remarks at its right end inside the picture."""
    canvas = FigureCanvasAgg(figure)
    for _ in range(20):
        canvas.draw()
        edge = max((text.get_window_extent().x1 for text in axes.texts), default=0.0)
        if edge <= figure.bbox.x1 - EDGE:
            return
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.15 if axes.get_xscale() == "log" else high * 1.15)


def _lines(groups: Mapping[str, Mapping[str, TimingJson]]) -> list[tuple[str, str, TimingJson | None]]:
    """(candidate, remark, timing) from top to bottom; a heading has no timing."""
    lines: list[tuple[str, str, TimingJson | None]] = []
    for heading, timings in groups.items():
        lines.append((heading, "", None))
        for name, timing in sorted(timings.items(), key=lambda pair: pair[1]["median_s"]):
            remark = duration(timing["median_s"])
            if name != FLAX_JIT and FLAX_JIT in timings:
                speedup = factor(timing["median_s"] / timings[FLAX_JIT]["median_s"])
                remark += f" · jit is {speedup} as fast"
            lines.append((name, remark, timing))
    return lines


def _draw(axes: Axes, lines: list[tuple[str, str, TimingJson | None]]) -> None:
    for row, (name, remark, timing) in enumerate(lines):
        if timing is None:
            axes.axhline(row - 0.55, color="#cccccc", linewidth=0.7 if row else 0)
            continue
        colour = COLOURS.get(name, OTHER)
        low, median, high = (timing[key] for key in ("q1_s", "median_s", "q3_s"))
        axes.plot([low, high], [row, row], color=colour, linewidth=5, solid_capstyle="butt", alpha=0.45)
        axes.plot(median, row, "o", color=colour, markersize=5)
        weight = "bold" if name == FLAX_JIT else "normal"
        place = {"xy": (max(median, high), row), "xytext": (7, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(remark, **place, fontsize=8.5, fontweight=weight, color="#222222")
    names = [shortened(name, LONGEST_NAME) for name, _, _ in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=9, parse_math=False)
    for label, (_, _, timing) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("normal" if timing else "bold")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    _scale(axes, [timing for _, _, timing in lines if timing])


def _scale(axes: Axes, timings: list[TimingJson]) -> None:
    """The time axis, with room for the remarks at its right; on a linear one distances start at zero."""
    lowest, highest = min(timing["q1_s"] for timing in timings), max(timing["q3_s"] for timing in timings)
    logarithmic = highest > LINEAR_UP_TO * lowest
    if logarithmic:
        axes.set_xscale("log")
        label_logarithmic(axes.xaxis, _milliseconds)
        axes.set_xlim(lowest / 1.25, highest * (highest / lowest) ** 0.45)
    else:
        axes.set_xlim(0, highest * 1.5)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _milliseconds(seconds)))
    axes.tick_params(left=False, labelsize=8.5)
    axes.tick_params(axis="x", which="minor", labelsize=7)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(f"ms per call{', logarithmic' if logarithmic else ''}; less is faster", fontsize=8.5, loc="left")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:g}"
