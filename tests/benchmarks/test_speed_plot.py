"""The speed plot: what is drawn, and how it is written."""

import pytest
from matplotlib.figure import Figure

from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, Timing
from jaxattn.plots import speed

CONDITIONS = {"shapes": [[8, 128, 256]], "dtype": "float32", "cores": 2, "cpu": "a CPU", "rounds": 3}


def timings(**milliseconds: float) -> dict:
    names = {"eager": FLAX_EAGER, "jit": FLAX_JIT, "torch": TORCH_EAGER}
    return {
        names[name]: Timing((ms * 0.9e-3, ms * 1e-3, ms * 1.2e-3), 3).to_json() for name, ms in milliseconds.items()
    }


def drawn(monkeypatch, tmp_path, groups) -> Figure:
    """The figure that would be written."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: figures.append(figure) or open(path, "w").close())
    speed.plot_speed(groups, tmp_path / "speed.png", title="A title", conditions=CONDITIONS)
    return figures[0]


def test_lines_are_sorted_and_labelled_with_numbers_and_units(monkeypatch, tmp_path):
    groups = {"output": timings(eager=12.0, jit=3.0, torch=2.4), "other": timings(jit=4.0, torch=6.0)}
    figure = drawn(monkeypatch, tmp_path, groups)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["output", TORCH_EAGER, FLAX_JIT, FLAX_EAGER, "other", FLAX_JIT, TORCH_EAGER]
    remarks = [text.get_text() for text in axes.texts]
    assert remarks == [
        "2.40 ms · jit is 0.80× as fast",
        "3.00 ms",
        "12.0 ms · jit is 4.0× as fast",
        "4.00 ms",
        "6.00 ms · jit is 1.5× as fast",
    ]
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
    assert "8×128×256, float32" in figure.get_supxlabel() and "2 cores of a CPU" in figure.get_supxlabel()


def test_the_axis_is_logarithmic_when_the_times_are_far_apart(monkeypatch, tmp_path):
    axes = drawn(monkeypatch, tmp_path, {"output": timings(eager=50.0, jit=1.0)}).axes[0]
    assert axes.get_xscale() == "log" and "logarithmic" in axes.get_xlabel()


def test_an_existing_file_is_kept_and_a_failed_one_leaves_nothing(monkeypatch, tmp_path):
    path = tmp_path / "speed.png"
    path.write_text("old")
    groups = {"output": timings(jit=1.0)}
    with pytest.raises(FileExistsError, match="--force"):
        speed.plot_speed(groups, path, title="", conditions=CONDITIONS)
    monkeypatch.setattr(Figure, "savefig", lambda figure, partial: open(partial, "w").close() or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        speed.plot_speed(groups, path, title="", conditions=CONDITIONS, force=True)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_real_picture(tmp_path, suffix):
    path = tmp_path / f"speed.{suffix}"
    speed.plot_speed({"output": timings(eager=12.0, jit=3.0)}, path, title="A title", conditions=CONDITIONS)
    assert path.stat().st_size > 1000 and list(tmp_path.iterdir()) == [path]
