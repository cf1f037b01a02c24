"""What goes into the page: scales, lines of tables, pictures, charts, texts."""

import base64
import io
import math
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from jaxattn.parity.page import facts, maps, words
from jaxattn.parity.page.charts import training_charts
from jaxattn.parity.page.scale import LogScale, bar, short
from jaxattn.parity.page.tables import LONG, layer_table, row_table
from jaxattn.parity.report import ParityReport, Row
from jaxattn.parity.trace_report import AttentionMap, Evidence, Layer, TraceReport
from jaxattn.parity.train_report import Step, TrainReport

NEUTRAL = 128  # the middle of a colour map of 256
HEADS, QUERIES, KEYS = 6, 5, 7


def test_a_scale_is_logarithmic() -> None:
    scale = LogScale(-17, 1)
    places = {0.0: 0, 1e-17: 1, 1e-8: 50, 10.0: 100, 1e5: 100, math.inf: 100, math.nan: 100}
    assert {value: scale.share(value) for value in places} == places
    assert [tick.text for tick in scale.ticks] == ["1e-16", "1e-12", "1e-8", "1e-4", "1"]
    assert [tick.at for tick in scale.ticks] == pytest.approx([100 * n / 18 for n in (1, 5, 9, 13, 17)], abs=0.01)


def test_a_scale_holds_every_number() -> None:
    assert LogScale.of([None, 0.0, math.nan, math.inf]) == LogScale(-17, 1)
    assert LogScale.of([3e-20, 5e3]) == LogScale(-20, 4)
    assert LogScale.of([1e-300, 1e300]) == LogScale(-40, 12)


def test_bars() -> None:
    scale = LogScale(-17, 1)
    within, beyond, nan = (bar(scale, error, 1e-8, 1e-17) for error in (1e-8, 2e-8, math.nan))
    assert (within.state, within.width, within.allowed, within.other) == ("ok", 50, 50, 1)
    assert (beyond.state, nan.state, nan.width) == ("bad", "bad", 100)
    assert bar(scale, None, 1e-8).state == "none"
    assert [bar(scale, error, 1e-8).equal for error in (0.0, 1e-300, math.nan)] == [True, False, False]


def test_numbers() -> None:
    texts = {2.24e-16: "2.2e-16", 1e-12: "1e-12", 0.004: "0.004", 0.0: "0", 3.14159: "3.1", 2e6: "2e+06"}
    assert {value: short(value) for value in texts} == texts
    assert [short(value) for value in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "NaN"]


def layer(path: str, local: float, whole: float, call: int = 0, problems: tuple[str, ...] = ()) -> Layer:
    return Layer(path, path, call, "Linear", "Linear", (3, 5), local, 1e-12, whole, 1e-12, problems)


def test_an_error_is_not_blamed_on_what_comes_after_it() -> None:
    trace = TraceReport(
        "T",
        "F",
        (layer("a", 0.0, 1e-16), layer("b", 0.0, 0.0), layer("b", 0.1, 0.1, 1, ("0.1",)), layer("c", 0.0, 0.2)),
        first="b",
    )
    lines = layer_table(trace).lines
    assert [line.state for line in lines] == ["ok", "ok", "bad", "inherited"]
    assert [line.first for line in lines] == [False, False, True, False]
    assert (lines[3].local.state, lines[3].whole.state) == ("ok", "inherited")
    assert lines[3].verdict == "gets another input"


def test_a_class_that_only_torch_needs_has_its_plain_name() -> None:
    odd = replace(layer("a", 0.0, 0.0), torch_kind="NonDynamicallyQuantizableLinear")
    lines = layer_table(TraceReport("T", "F", (odd, replace(odd, flax_kind="Embed")))).lines
    assert [line.kinds for line in lines] == ["Linear", "Linear → Embed"]


def test_without_a_cause_what_tells_most_stands_for_it() -> None:
    found = [Evidence("weights", "a", "far"), Evidence("output", "", "differs"), Evidence("local", "", "look: there")]
    trace = TraceReport("T", "F", (), tuple(found), first="")
    told = facts.divergence(trace)
    assert told and (told.name, told.text) == ("cause unknown", "look: there")
    assert [item.sentence for item in told.evidence] == ["far", "differs"]
    known = facts.divergence(replace(trace, cause="eps: is 1"))
    assert known and (known.name, known.text) == ("eps", "is 1")
    assert [item.sentence for item in known.evidence] == ["look: there", "far", "differs"]
    bare = facts.divergence(replace(trace, evidence=()))
    assert bare and (bare.path, bare.name, bare.text) == ("the whole module", "cause unknown", "")


def test_long_tables_are_folded_while_all_is_well() -> None:
    healthy = TraceReport("T", "F", tuple(layer(str(number), 0.0, 0.0) for number in range(LONG + 1)))
    assert not layer_table(healthy).open
    assert layer_table(replace(healthy, layers=healthy.layers[1:])).open
    assert layer_table(replace(healthy, layers=(*healthy.layers, layer("x", 1.0, 1.0, 0, ("1",))))).open


def test_every_row_is_in_a_group_and_zero_gradients_come_last() -> None:
    rows = (
        Row("state dict, bit for bit", "weights", (17,)),
        Row("gradient of k.bias", "gradient", (7,), 0.0, 1e-11, zero=True),
        Row("output", "output", (3, 5), 1e-15, 1e-12, 2e-7, 1e-7, 9e-7),
        Row("gradient of x", "gradient", (3,), math.inf, 1e-11, problems=("inf",)),
        Row("another", "unheard of", (2,)),
    )
    groups = row_table(ParityReport("T", "F", "float32", 0, rows)).groups
    assert list(groups)[-1] == "Gradients that are zero up to rounding"
    assert [(title, line.what, line.shape, line.state) for title, lines in groups.items() for line in lines] == [
        ("Weights", "state dict, bit for bit", "17 tensors", "ok"),
        ("Outputs", "output", "(3, 5)", "ok"),
        ("Gradients", "x", "(3,)", "bad"),
        ("unheard of", "another", "(2,)", "ok"),
        ("Gradients that are zero up to rounding", "k.bias", "(7,)", "ok"),
    ]


def weights(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn = rng.random((2, HEADS, QUERIES, KEYS))
    return drawn / drawn.sum(-1, keepdims=True)


def pixels(address: str) -> np.ndarray:
    """[rows, columns, RGB] of an address that holds its data."""
    kind, data = address.split(",")
    assert kind == "data:image/png;base64"
    return (imread(io.BytesIO(base64.b64decode(data)), format="png")[..., :3] * 255).round().astype(int)


def colour(name: str, place: int) -> list[int]:
    return [round(255 * part) for part in matplotlib.colormaps[name](place)[:3]]


def view(torch: np.ndarray, flax: np.ndarray) -> maps.MapView:
    (only,), left_out = maps.map_views(TraceReport("T", "F", (), maps=(AttentionMap("a", torch, flax),)))
    assert left_out == 0
    return only


def test_a_picture_has_one_pixel_a_weight_and_its_sign() -> None:
    torch = weights(0)
    flax = torch.copy()
    flax[1, 4, 2, 3] += 0.5
    flax[1, 4, 3, 1] -= 0.5
    drawn = view(torch, flax)
    assert [head.name for head in drawn.heads] == ["head 4"] and not drawn.ok
    assert "example 1 of a batch of 2" in drawn.notes and "1 of 6 heads drawn, heads that differ: 1" in drawn.notes
    assert drawn.heads[0].difference is not None
    found = pixels(drawn.heads[0].difference)
    assert found.shape == (QUERIES, KEYS, 3)
    assert found[2, 3].tolist() == colour(maps.DIFFERENCES, 255)
    assert found[3, 1].tolist() == colour(maps.DIFFERENCES, 0)
    assert np.abs(found[0, 0] - colour(maps.DIFFERENCES, NEUTRAL)).max() <= 1
    highest = max(torch[1].max(), flax[1].max())
    expected = matplotlib.colormaps[maps.WEIGHTS](flax[1, 4] / highest)[..., :3]
    assert np.abs(pixels(drawn.heads[0].flax) - 255 * expected).max() <= 1


def test_rounding_alone_leaves_the_difference_empty() -> None:
    torch = weights(0)
    drawn = view(torch, torch + 1e-16)
    assert drawn.ok and "rounding only" in drawn.summary and len(drawn.heads) == maps.MOST_HEADS
    for head in drawn.heads:
        assert head.difference is not None
        assert np.abs(pixels(head.difference) - colour(maps.DIFFERENCES, NEUTRAL)).max() <= 2


def test_nan_is_grey_and_fails_on_one_side_only() -> None:
    torch = weights(0)
    torch[0, 1, 2] = np.nan
    assert view(torch, torch).ok
    drawn = view(torch, weights(0))
    assert not drawn.ok and "NaN" in drawn.summary and [head.name for head in drawn.heads] == ["head 1"]
    assert (pixels(drawn.heads[0].torch)[2] == 0x9A).all()
    assert not (pixels(drawn.heads[0].flax)[2] == 0x9A).all(-1).any()


def test_equal_maps_are_called_so() -> None:
    torch = weights(0)
    assert [head.equal for head in view(torch, torch).heads] == [True] * maps.MOST_HEADS
    assert [head.equal for head in view(torch, torch + 1e-16).heads] == [False] * maps.MOST_HEADS


def test_maps_of_other_shapes_have_no_difference() -> None:
    drawn = view(weights(0), weights(0)[..., :3])
    assert not drawn.ok and "shapes differ" in drawn.summary and drawn.heads[0].difference is None


def test_long_sequences_are_drawn_in_blocks_that_hide_no_difference() -> None:
    torch = np.zeros((1, maps.MOST_PIXELS + 1, 2 * maps.MOST_PIXELS))
    flax = torch.copy()
    flax[0, maps.MOST_PIXELS, 5] = -0.7
    torch[0, 0, 1] = flax[0, 0, 1] = np.nan
    drawn = view(torch, flax)
    assert drawn.heads[0].difference is not None
    found = pixels(drawn.heads[0].difference)
    assert found.shape == (math.ceil((maps.MOST_PIXELS + 1) / 2), maps.MOST_PIXELS, 3)
    assert found[-1, 2].tolist() == colour(maps.DIFFERENCES, 0) and (found[0, 0] == 0x9A).all()
    assert "a pixel is the largest of 2 × 2 values" in drawn.notes


def test_modules_that_differ_are_drawn_before_others() -> None:
    one = weights(0)
    items = [AttentionMap(str(place), one, one + (0.1 if place == 7 else 0.0)) for place in range(9)]
    drawn, left_out = maps.map_views(TraceReport("T", "F", (), maps=tuple(items)))
    assert [item.path for item in drawn] == ["0", "1", "2", "3", "4", "7"] and left_out == 3


def test_charts() -> None:
    steps = tuple(Step(i, 2.0 - i, 2.0 - i, 0.0, 1e-15, 10.0 ** (i - 10), "w") for i in range(4))
    losses, errors = training_charts(TrainReport("T", "F", "SGD", steps, first=2))
    assert losses.lines[0].points == losses.lines[1].points
    heights = {line.name: [y for _, y in line.markers] for line in errors.lines}
    assert heights["loss"] == [errors.bottom] * 4 and errors.y_ticks[0].text == "0"
    assert (
        heights["parameter"][1] == errors.budget and sorted(heights["parameter"], reverse=True) == heights["parameter"]
    )
    assert errors.first == losses.first == errors.lines[0].markers[2][0]
    assert training_charts(TrainReport("T", "F", "SGD", ())) == []


@pytest.mark.parametrize("losses", [(math.nan, math.nan), (0.0, 0.0), (-3.0, math.inf), (1e300, -1e300)])
def test_charts_of_odd_losses(losses: tuple[float, float]) -> None:
    steps = tuple(Step(i, loss, loss, math.nan, math.inf, 0.0, "") for i, loss in enumerate(losses))
    drawn = training_charts(TrainReport("T", "F", "SGD", steps, first=0))
    for chart in drawn:
        assert all(chart.top <= y <= chart.bottom for line in chart.lines for _, y in line.markers)


def test_texts_are_escaped_and_names_become_code() -> None:
    assert words.prose("`a.b<i>` & 1e-05") == ('<code>a.<wbr>b&lt;i&gt;</code> &amp; <span class="number">1e-05</span>')
    assert words.path("self_attn.LayerNorm<x>") == "self_<wbr>attn.<wbr>Layer<wbr>Norm&lt;x&gt;"


def test_conditions_say_what_is_the_same_once() -> None:
    shared = {"fast_path": False, "rounding": {"ulps": 2.0}}
    trace = TraceReport("T", "F", (), versions={"jax": "1"}, conditions={**shared, "dtype": "float64"})
    report = ParityReport("T", "F", "float32", 7, (), versions={"jax": "1"}, conditions=shared, trace=trace)
    assert facts.conditions(report) == {
        "Versions": {"jax": "1"},
        "Comparison": {"dtype": "float32", "seed": "7", "fast path": "False", "rounding, ulps": "2.0"},
        "Trace": {"dtype": "float64"},
    }
