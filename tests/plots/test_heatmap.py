"""plots/heatmap.py: what is in the picture, and that it is there whole or not at all."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from jaxattn.plots import heatmap
from jaxattn.plots.heatmap import attention_heatmap

WORDS = ["He", "ate", "an", "apple"]


def draw_weights(*shape: int) -> np.ndarray:
    weights = np.exp(np.random.default_rng(0).standard_normal(shape))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def figures(monkeypatch, tmp_path) -> list[Figure]:
    """The figures that were drawn, instead of their files."""
    drawn: list[Figure] = []
    monkeypatch.setattr(heatmap, "save_figure", lambda figure, path, force: drawn.append(figure))
    return drawn


def panels(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.images]


def texts(labels) -> list[str]:
    return [label.get_text() for label in labels]


def test_the_file_is_a_picture_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "map.png"
    attention_heatmap(draw_weights(4, 4), query_labels=WORDS, key_labels=WORDS, title="a $title", path=path)
    height, width, _ = imread(path).shape
    assert height > 200 and width > 300
    assert [entry.name for entry in tmp_path.iterdir()] == ["map.png"]
    assert "matplotlib.pyplot" not in sys.modules


def test_panels_hold_the_weights_on_one_scale_from_zero(figures, tmp_path):
    weights = draw_weights(3, 4, 5)
    attention_heatmap(weights, query_labels=WORDS, title="three", path=tmp_path / "x.png")
    (figure,) = figures
    assert figure.get_suptitle() == "three"
    assert [axes.get_title() for axes in panels(figure)] == ["head 0", "head 1", "head 2"]
    for axes, head in zip(panels(figure), weights, strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), head)
        np.testing.assert_allclose(image.get_clim(), (0, weights.max()))
        assert texts(axes.get_xticklabels()) == ["0", "1", "2", "3", "4"]
    assert texts(panels(figure)[0].get_yticklabels()) == WORDS  # the others stand beside it
    bars = [axes for axes in figure.axes if axes.get_ylabel() == "weight"]
    assert len(bars) == 1


def test_rows_are_queries_and_columns_keys_with_their_numbers(figures, tmp_path):
    weights = draw_weights(2, 4)
    attention_heatmap(weights, query_labels=["a", "b"], key_labels=WORDS, path=tmp_path / "x.png")
    (axes,) = panels(figures[0])
    assert axes.get_title() == ""
    assert texts(axes.texts) == [f"{weight:.2f}" for weight in weights.ravel()]
    places = [text.get_position() for text in axes.texts]
    assert places == [(key, query) for query in range(2) for key in range(4)]
    assert texts(axes.get_yticklabels()) == ["a", "b"]


def test_many_long_and_strange_labels_are_thinned_cut_and_taken_literally(figures, tmp_path):
    labels = ["$5", "incomprehensibilities", "$x^$"] * 50
    attention_heatmap(draw_weights(150, 150), query_labels=labels, key_labels=labels, path=tmp_path / "x.png")
    attention_heatmap(draw_weights(2, 150, 150), path=tmp_path / "x.png")
    one, several = (panels(figure)[0] for figure in figures)
    assert texts(one.get_xticklabels())[:2] == ["$5", "$5"]
    assert {len(one.get_xticks()), len(one.get_yticks())} == {50}
    np.testing.assert_array_equal(one.get_xticks(), np.arange(50) * 3)
    assert texts(several.get_xticklabels())[:3] == ["0", "7", "14"]
    assert not one.texts
    attention_heatmap(draw_weights(1, 2), key_labels=labels[1:3], path=tmp_path / "x.png")
    assert texts(panels(figures[2])[0].get_xticklabels()) == ["incomprehensi…", "$x^$"]
    figures[2].draw_without_rendering()


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (5, 1, 40)])
def test_any_proportions_can_be_drawn(tmp_path, shape):
    attention_heatmap(draw_weights(*shape), path=tmp_path / "map.png")
    height, width, _ = imread(tmp_path / "map.png").shape
    assert 100 < height < 4000 and 100 < width < 4000


def test_rows_of_zeros_and_of_nan_can_be_drawn(figures, tmp_path):
    weights = draw_weights(3, 3)
    weights[1] = np.nan
    for drawn, highest in ((np.zeros((3, 3)), 1), (weights, np.nanmax(weights))):
        attention_heatmap(drawn, path=tmp_path / "x.png")
        (image,) = panels(figures[-1])[0].images
        np.testing.assert_allclose(image.get_clim(), (0, highest))
        figures[-1].draw_without_rendering()


@pytest.mark.parametrize("shape", [(4,), (1, 2, 3, 4), (0, 3), (2, 0, 3)])
def test_another_rank_or_nothing_is_an_error(tmp_path, shape):
    with pytest.raises(ValueError, match=r"`weights` must be \[T, S\] or \[N, T, S\]"):
        attention_heatmap(np.zeros(shape), path=tmp_path / "map.png")


def test_labels_of_another_number_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="`query_labels` must be 3 labels, one a position, got 4"):
        attention_heatmap(draw_weights(3, 4), query_labels=WORDS, key_labels=WORDS, path=tmp_path / "map.png")
    with pytest.raises(ValueError, match="`key_labels` must be 5 labels, one a position, got 4"):
        attention_heatmap(draw_weights(4, 5), query_labels=WORDS, key_labels=WORDS, path=tmp_path / "map.png")
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "map.png"
    path.write_text("theirs")
    with pytest.raises(FileExistsError, match="--force"):
        attention_heatmap(draw_weights(3, 3), path=path)
    assert path.read_text() == "theirs"
    attention_heatmap(draw_weights(3, 3), path=path, force=True)
    assert imread(path).ndim == 3


def test_a_failure_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "map.png"
    path.write_text("theirs")

    def fail(figure, destination):
        destination.write_text("half a pict")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        attention_heatmap(draw_weights(3, 3), path=path, force=True)
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["theirs"]


def test_places_where_no_picture_can_be_are_errors(tmp_path):
    for name, error in (("map.txt", ValueError), ("map", ValueError), ("no/map.png", FileNotFoundError)):
        with pytest.raises(error):
            attention_heatmap(draw_weights(3, 3), path=tmp_path / name)
    (tmp_path / "map.png").mkdir()
    with pytest.raises(FileExistsError, match="is a directory"):
        attention_heatmap(draw_weights(3, 3), path=tmp_path / "map.png", force=True)
