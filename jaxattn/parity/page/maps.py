"""Attention maps of both sides and their difference, as small pictures inside the page."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, to_hex
from matplotlib.image import imsave

from ...plots.heatmap import constant_of
from ..criterion import OUTPUT_TOLERANCE, deviation, output_scale
from ..trace_report import AttentionMap, TraceReport
from .scale import short

#: Lightness falls evenly, so it reads in grey and with any colour vision.
WEIGHTS, DIFFERENCES = "YlGnBu", "PuOr"
NOT_A_NUMBER = "#9a9a9a"
MOST_MODULES, MOST_HEADS = 6, 4
#: Pixels on a side; longer sequences are drawn in blocks.
MOST_PIXELS = 192


@dataclass(frozen=True)
class Head:
    """Pictures of one head, as addresses that hold their data; `difference` is None where shapes differ.

    Where the weights are equal there is one, too, but nothing is on it.
    """

    name: str
    torch: str
    flax: str
    difference: str | None
    largest: str
    equal: bool


@dataclass(frozen=True)
class MapView:
    """One attention module: heads on one scale of weights and one of differences.

    Attributes:
        path: torch's.
        size: "5 queries × 7 keys".
        heads: the drawn ones.
        summary: the largest difference against what is allowed.
        ok: it is within the budget.
        highest: of the weights' scale, from 0.
        widest: of the differences' scale, from −widest.
        notes: which heads and examples are left out, and what a pixel stands for.
        shape: width over height of a picture.
    """

    path: str
    size: str
    heads: list[Head]
    summary: str
    ok: bool
    highest: str
    widest: str
    notes: list[str]
    ratio: float


def map_views(trace: TraceReport) -> tuple[list[MapView], int]:
    """The maps to draw, those that differ before others, in the order of the trace; and how many are left out."""
    drawable = [item for item in trace.maps if item.torch.size and item.flax.size]
    chosen = _most_different(drawable, [_apart(item)[0] for item in drawable], MOST_MODULES)
    return [_view(item) for item in chosen], len(trace.maps) - len(chosen)


def colour_bar(name: str) -> str:
    """A colour map as a CSS gradient from left to right."""
    return ", ".join(to_hex(matplotlib.colormaps[name](place / 8)) for place in range(9))


def _apart(item: AttentionMap) -> tuple[float, bool]:
    """The largest difference, and whether the criterion allows it; infinite where it can't be measured."""
    if item.torch.shape != item.flax.shape:
        return math.inf, False
    found = deviation(item.flax, item.torch)
    allowed = found.problem is None and found.largest <= OUTPUT_TOLERANCE * output_scale(item.torch)
    return math.inf if found.problem else found.largest, allowed


def _most_different(items: Sequence, errors: Sequence[float], most: int) -> list:
    """At most so many, those beyond the budget before the others, in their own order."""
    worth = [error if error > OUTPUT_TOLERANCE else 0.0 for error in errors]
    kept = sorted(range(len(items)), key=lambda place: -worth[place])[:most]
    return [items[place] for place in sorted(kept)]


def _view(item: AttentionMap) -> MapView:
    error, ok = _apart(item)
    torch_maps, flax_maps, notes = _one_example(item)
    same = torch_maps.shape == flax_maps.shape
    errors = [_head_error(torch_maps, flax_maps, head) if same else math.inf for head in range(len(torch_maps))]
    beyond = [head for head, value in enumerate(errors) if not ok and value > OUTPUT_TOLERANCE]
    candidates = beyond or range(len(torch_maps))
    heads = _most_different(candidates, [errors[head] for head in candidates], MOST_HEADS)
    if len(heads) < len(torch_maps):
        differing = f", heads that differ: {len(beyond)}" if beyond else ""
        notes.append(f"{len(heads)} of {len(torch_maps)} heads drawn{differing}")
    block = math.ceil(max(torch_maps.shape[-2:]) / MOST_PIXELS)
    if block > 1:
        notes.append(f"a pixel is the largest of {block} × {block} values")
    constants = {constant_of(maps) for maps in (torch_maps, flax_maps)}
    if len(constants) == 1 and (value := constants.pop()) is not None:
        notes.append(f"every weight is {value:.4g}, a map without a pattern: are all tokens equal?")
    finite = [values[np.isfinite(values)] for values in (torch_maps, flax_maps)]
    highest = max([float(values.max()) for values in finite if values.size], default=1.0) or 1.0
    # Rounding alone leaves the picture of differences empty.
    widest = max([OUTPUT_TOLERANCE * output_scale(item.torch), *(value for value in errors if math.isfinite(value))])
    return MapView(
        item.path or "the whole module",
        f"{torch_maps.shape[-2]} queries × {torch_maps.shape[-1]} keys",
        [_head(torch_maps, flax_maps, head, errors[head], highest, widest, block) for head in heads],
        _summary(item, error, ok),
        ok,
        short(highest),
        short(widest),
        notes,
        min(max(torch_maps.shape[-1] / torch_maps.shape[-2], 0.5), 3.0),
    )


def _one_example(item: AttentionMap) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """[N, T, S] of both sides: the example of the batch that differs most."""
    torch_maps = item.torch.reshape(-1, *item.torch.shape[-3:]) if item.torch.ndim > 2 else item.torch[None, None]
    flax_maps = item.flax.reshape(-1, *item.flax.shape[-3:]) if item.flax.ndim > 2 else item.flax[None, None]
    example = 0
    if torch_maps.shape == flax_maps.shape and not _apart(item)[1]:
        example = int(np.argmax([_largest(ours - theirs) for ours, theirs in zip(flax_maps, torch_maps, strict=True)]))
    notes = [f"example {example} of a batch of {len(torch_maps)}"] if len(torch_maps) > 1 else []
    return torch_maps[example], flax_maps[min(example, len(flax_maps) - 1)], notes


def _head_error(torch_maps: np.ndarray, flax_maps: np.ndarray, head: int) -> float:
    found = deviation(flax_maps[head], torch_maps[head])
    return math.inf if found.problem else found.largest


def _largest(difference: np.ndarray) -> float:
    return float(np.max(np.nan_to_num(np.abs(difference), nan=np.inf)))


def _summary(item: AttentionMap, error: float, ok: bool) -> str:
    if item.torch.shape != item.flax.shape:
        return f"shapes differ: torch {item.torch.shape}, Flax {item.flax.shape}"
    if math.isinf(error):
        return "NaN or infinite on one side only"
    allowed = short(OUTPUT_TOLERANCE * output_scale(item.torch))
    return f"largest difference {short(error)}, allowed {allowed}" + (": rounding only" if ok and error else "")


def _head(
    torch_maps: np.ndarray, flax_maps: np.ndarray, head: int, error: float, highest: float, widest: float, block: int
) -> Head:
    weights, differences = matplotlib.colormaps[WEIGHTS], matplotlib.colormaps[DIFFERENCES]
    difference = None
    if torch_maps.shape == flax_maps.shape:
        with np.errstate(invalid="ignore"):
            apart = flax_maps[head] - torch_maps[head]
        difference = _picture(apart, differences, -widest, widest, block)
    return Head(
        f"head {head}",
        _picture(torch_maps[head], weights, 0.0, highest, block),
        _picture(flax_maps[min(head, len(flax_maps) - 1)], weights, 0.0, highest, block),
        difference,
        short(error),
        error == 0,
    )


def _picture(values: np.ndarray, colours: Colormap, low: float, high: float, block: int) -> str:
    """A PNG of one pixel a value, NaN in grey."""
    values = _blocks(np.asarray(values, np.float64), block)
    shares = (values - low) / (high - low)
    pixels = colours.with_extremes(bad=NOT_A_NUMBER)(np.ma.masked_invalid(shares), bytes=True)
    file = io.BytesIO()
    imsave(file, np.asarray(pixels), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _blocks(values: np.ndarray, block: int) -> np.ndarray:
    """The value of largest magnitude of every block × block; NaN where one is."""
    if block == 1:
        return values
    rows, columns = (math.ceil(size / block) for size in values.shape)
    padded = np.zeros((rows * block, columns * block))
    padded[: values.shape[0], : values.shape[1]] = values
    cells = padded.reshape(rows, block, columns, block).transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    magnitude = np.where(np.isnan(cells), np.inf, np.abs(cells))
    return np.take_along_axis(cells, magnitude.argmax(-1)[..., None], -1)[..., 0]
