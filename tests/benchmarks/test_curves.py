"""Curves over the length: what is drawn."""

import numpy as np
from matplotlib.figure import Figure

from benchmarks import curves
from benchmarks.systems import JAX_NN, OURS, TORCH

CONDITIONS = {"inputs": "B1 N8 H64", "dtype": "float32", "cores": 2, "cpu": "a CPU", "rounds": 3}
PANELS = {
    "full": {OURS: [(512, 40.0), (128, 30.0)], TORCH: [(128, 45.0), (512, 50.0)], JAX_NN: [(128, 9.0), (512, 8.0)]},
    "causal": {OURS: [(128, 60.0), (512, 70.0)]},
    "nothing": {},
}


def drawn(monkeypatch, tmp_path) -> Figure:
    figures = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, path, force: figures.append(figure))
    curves.plot_curves(PANELS, tmp_path / "op.png", title="A title", axis="GFLOP/s", conditions=CONDITIONS)
    return figures[0]


def test_panels_lines_and_labels(monkeypatch, tmp_path):
    figure = drawn(monkeypatch, tmp_path)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["full", "causal"]
    full = figure.axes[0]
    assert [line.get_label() for line in full.get_lines()] == [OURS, TORCH, JAX_NN]
    assert np.asarray(full.get_lines()[0].get_xydata()).tolist() == [[128, 30], [512, 40]]  # in order of length
    assert full.get_xscale() == full.get_yscale() == "log"
    assert [label.get_text() for label in full.get_xticklabels()] == ["128", "512"]
    assert full.get_ylabel() == "GFLOP/s" and full.get_xlabel() == "length T, tokens"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [OURS, TORCH, JAX_NN]
    assert "B1 N8 H64, float32" in figure.get_supxlabel()


def test_a_narrow_axis_has_labels_between_powers_of_ten(monkeypatch, tmp_path):
    axis = drawn(monkeypatch, tmp_path).axes[0].yaxis
    minor = axis.get_minor_formatter()
    assert [minor(value) for value in (20.0, 30.0, 50.0)] == ["20", "", "50"]
    axis.axes.set_ylim(1, 1e4)
    assert minor(20.0) == ""


def test_a_picture_is_written_and_replaced(tmp_path):
    path = tmp_path / "op.png"
    path.write_text("old")
    curves.plot_curves(PANELS, path, title="A title", axis="GFLOP/s", conditions=CONDITIONS)
    assert path.stat().st_size > 1000 and list(tmp_path.iterdir()) == [path]
