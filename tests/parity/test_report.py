"""The report as an object, a table and JSON."""

import json
import math

import pytest

from jaxattn.parity.report import ParityReport, Row

GOOD = Row("output", "output", (3, 5), 1e-15, 1e-12, 2e-7, 1e-7, 9e-7, 1e-7, 1e-7, 4e-7)
BAD = Row("gradient of x", "gradient", (3,), math.inf, 1e-11, 0.5, 1e-7, 9e-7, problems=("float64: 1 > 1e-11",))
HINT = "jaxattn.parity.trace(torch_module, flax_module, …) tells where it starts"
ZERO = Row("gradient of k.bias", "gradient", (7,), 0.0, 1e-11, 0.0, 0.0, 1e-7, zero=True)


def report(*rows: Row, dtype: str = "float32") -> ParityReport:
    return ParityReport("Torch", "Twin", dtype, 3, rows, ("a [note]",), {"jax": "cpu"}, {"jax": "0"}, {"x": 1.0})


def test_ok() -> None:
    healthy = report(GOOD, ZERO)
    assert healthy.ok and not healthy.failed
    healthy.assert_ok()


def test_assert_ok_lists_the_failed_rows_and_the_notes() -> None:
    with pytest.raises(AssertionError) as caught:
        report(GOOD, BAD).assert_ok()
    assert str(caught.value).splitlines() == [
        "Parity of torch Torch and Flax Twin (float32): FAILED in 1 of 2 rows",
        "  - gradient of x (3,): float64: 1 > 1e-11",
        f"  - {HINT}",
        "  note: a [note]",
    ]


def test_of_many_failed_gradients_the_worst_are_listed() -> None:
    problems = ("float64: off",)
    gradients = [
        Row(f"g{i}", "gradient", (), error, 1.0, problems=problems)
        for i, error in enumerate([2.0, 8.0, 4.0, math.nan, 7.0, 3.0, 6.0])
    ]
    outputs = [Row(f"o{i}", "output", (), 2.0, 1.0, problems=problems) for i in range(7)]
    named = [line.split()[0] for line in report(*gradients, *outputs).failures[:-2]]
    assert named == [*(f"o{i}" for i in range(7)), "g3", "g1", "g4", "g6", "g2"]
    assert report(*gradients, *outputs).failures[-2:] == ["… 2 more", HINT]


def test_json_is_strict() -> None:
    text = json.dumps(report(GOOD, BAD).to_json(), allow_nan=False)
    found = json.loads(text)
    assert not found["ok"] and found["seed"] == 3 and found["dtype"] == "float32"
    assert found["rows"][0]["shape"] == [3, 5] and found["rows"][0]["verdict"] == "ok"
    assert found["rows"][1]["error_float64"] == "inf" and found["rows"][1]["rms"] is None


def test_table() -> None:
    text = str(report(GOOD, BAD, ZERO))
    main, zeros = text.split("Gradients that are zero up to rounding")
    assert "gradient of x" in main and "k.bias" not in main and "k.bias" in zeros
    assert "a [note]" in zeros and "2.0e-07" in main and "float64: 1 > 1e-11" in main
    assert "Flax float32" in main and "\x1b" not in text


def test_a_float64_table_has_no_low_columns() -> None:
    assert "torch float64" not in str(report(GOOD, dtype="float64"))


def test_row_by_name() -> None:
    assert report(GOOD).row("output") is GOOD
    with pytest.raises(KeyError, match="there are 'output'"):
        report(GOOD).row("nope")
