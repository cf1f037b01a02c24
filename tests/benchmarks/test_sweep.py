"""The sweep of block sizes: which are tried, and what is written."""

import json

from benchmarks import __main__ as entry
from benchmarks import sweep
from benchmarks.grid import Point


def test_candidates_are_clipped_to_the_shape_and_differ():
    short, grouped = Point(1, 2, 2, 100, 90, 8), Point(1, 8, 2, 2048, 2048, 8)
    assert all(s.queries <= 100 and s.keys == 90 for s in sweep.candidates(short))
    assert {s.queries for s in sweep.candidates(grouped)} == {64, 128, 256}
    for point in (short, grouped):
        assert len(set(sweep.candidates(point))) == len(sweep.candidates(point)) > 1


def test_a_sweep_tells_the_tuned_sizes_from_the_others(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sweep, "TINY", [Point(1, 2, 1, 6, 5, 4, causal=True), Point(1, 2, 2, 1, 5, 4)])
    monkeypatch.setattr(sweep, "CANDIDATES", [(1, 4, 4, 1)])
    assert entry.main(["sweep", "--quick", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert [(result["label"], result["backward"]) for result in data["results"]] == [
        ("B1 N2 K1 T6 S5 H4 causal", False),
        ("B1 N2 K1 T6 S5 H4 causal", True),
    ]
    for result in data["results"]:
        assert result["schedules"].keys() == result["times"].keys() and len(result["times"]) == 2
        assert result["tuned"] in result["schedules"].values()
    assert capsys.readouterr().out.count("← tuned") == 2
