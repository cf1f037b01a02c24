"""Pictures keep inside their edge, show no number that a table withholds, and say what can't be seen in them."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from jaxattn.cli import demo
from jaxattn.conditions import TOO_BUSY, withheld
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, BenchReport, Mode, Timing
from jaxattn.parity.page.maps import map_views
from jaxattn.parity.report import ParityReport, Row
from jaxattn.parity.trace_report import AttentionMap, TraceReport
from jaxattn.plots.heatmap import attention_heatmap
from jaxattn.plots.speed import plot_speed

QUIET = {"shapes": [[8, 128, 256]], "dtype": "float32", "cores": 2, "cpu": "a CPU", "rounds": 3}
BUSY = {**QUIET, "cores_busy_elsewhere": TOO_BUSY + 0.9}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Calls a plotting function; gives the figure that it would have written."""

    def draw(plot, *arguments, **options) -> Figure:
        figures = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, path: figures.append(figure) or open(path, "w").close())
        plot(*arguments, path=tmp_path / "picture.png", force=True, **options)
        return figures[0]

    return draw


def texts(figure: Figure) -> list[Text]:
    FigureCanvasAgg(figure).draw()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def outside(figure: Figure) -> list[str]:
    """Texts that are cut by the edge of the picture; tick labels beyond the view aren't drawn at all."""
    found = texts(figure)
    skipped = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    edge = figure.bbox
    boxes = [(text, text.get_window_extent()) for text in found if text not in skipped]
    return [
        text.get_text()
        for text, box in boxes
        if box.x0 < edge.x0 or box.y0 < edge.y0 or box.x1 > edge.x1 or box.y1 > edge.y1
    ]


def timings(*milliseconds: float) -> dict:
    names = (FLAX_JIT, TORCH_EAGER, FLAX_EAGER, "a candidate of a library with a very long name indeed")
    return {
        name: Timing((ms * 0.9e-3, ms * 1e-3, ms * 1.3e-3), 3).to_json()
        for name, ms in zip(names, milliseconds, strict=False)
    }


@pytest.mark.parametrize("times", [(1.0, 1.1, 1.2), (0.001, 12345.678, 3.0, 99999.0), (900.0, 899.0, 1.0)])
def test_speed_keeps_inside_its_edge(drawn, times):
    figure = drawn(plot_speed, {"all results": timings(*times)}, title="A title " * 30, conditions=QUIET)
    assert not outside(figure)


@pytest.mark.parametrize("shape", [(2, 3), (8, 8), (4, 5, 7), (3, 40, 9), (12, 4, 30)])
def test_heatmaps_keep_inside_their_edge(drawn, shape):
    weights = np.random.default_rng(0).random(shape)
    labels = {"query_labels": ["a long word"] * shape[-2], "key_labels": ["another long word"] * shape[-1]}
    assert not outside(drawn(attention_heatmap, weights, title="layers.11.self_attn " * 8, **labels))


def test_a_text_beyond_the_edge_would_be_seen(drawn):
    figure = drawn(attention_heatmap, np.random.default_rng(0).random((3, 3)))
    figure.text(0.98, 0.5, "far beyond the edge")
    assert outside(figure) == ["far beyond the edge"]


def test_the_picture_of_speed_withholds_what_the_table_does(drawn, capsys):
    groups = {"all results": timings(62.5, 31.25, 125.0)}
    shown = " ".join(text.get_text() for text in texts(drawn(plot_speed, groups, title="t", conditions=QUIET)))
    assert "62.5 ms" in shown and "2.0×" in shown
    reason = withheld(BUSY)
    figure = drawn(plot_speed, groups, title="t", conditions=BUSY)
    hidden = " ".join(text.get_text() for text in texts(figure))
    assert reason and reason in hidden and " ms" not in hidden and "×" not in hidden.replace("8×128×256", "")
    assert not outside(figure) and not any(axes.lines for axes in figure.axes)
    demo._print(*reports(BUSY))
    said = capsys.readouterr().out
    assert " ".join(reason.split()) in " ".join(said.split()) and "62.5 ms" not in said


def reports(conditions: dict) -> tuple:
    row = Row("output", "output", (2, 3), 1e-16, 1e-12, 2e-7, 3e-7, 9e-7)
    names = ("MultiHeadSelfAttention", "MultiHeadCrossAttention", "TransformerEncoder")
    found = {}
    for name in names:
        measured = {kind: Timing((0.0625,), 1) for kind in (FLAX_EAGER, FLAX_JIT, TORCH_EAGER)}
        parity = ParityReport(name, name, "float32", 0, (row,))
        found[name] = BenchReport(name, (Mode("all results", 1.0, measured),), parity, conditions)
    return found, found[names[0]].parity, TraceReport("T", "F", (), first="a"), demo.Path("out")


def test_the_table_is_legible_at_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    demo._print(*reports(QUIET | {"cores_busy_elsewhere": 0.0}))
    said = capsys.readouterr().out
    assert "MultiHeadSelfAttention" in said and "MultiHeadCrossAttention" in said
    table = said.split("Proved")[0]
    assert "…" not in table and max(map(len, table.splitlines())) <= 80


def test_a_map_of_constants_says_so(drawn):
    title = "layers.0"
    figure = drawn(attention_heatmap, np.full((2, 4, 8), 0.125), title=title)
    assert any("all weights are 0.125" in text.get_text() for text in texts(figure))
    figure = drawn(attention_heatmap, np.random.default_rng(0).random((2, 4, 8)), title=title)
    assert not any("all weights" in text.get_text() for text in texts(figure))
    for weights, noted in (
        (np.full((1, 2, 5, 10), 0.1), True),
        (np.random.default_rng(0).random((1, 2, 5, 10)), False),
    ):
        (view,), _ = map_views(TraceReport("T", "F", (), maps=(AttentionMap("a", weights, weights),)))
        assert any("every weight is 0.1" in note for note in view.notes) == noted
