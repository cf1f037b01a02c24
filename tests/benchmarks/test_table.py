"""README's tables from made results."""

import json

import pytest

from benchmarks import table
from benchmarks.minilm import PLAIN
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER

README = """# Title
<!-- table:modules -->
old
<!-- /table -->
between
<!-- table:minilm -->
<!-- /table -->
end
"""


def make_result(medians: dict[str, float], **facts) -> dict:
    jit = medians[FLAX_JIT]
    speedups = {
        name: {"median": seconds / jit, "low": 0.9 * seconds / jit, "high": 1.1 * seconds / jit}
        for name, seconds in medians.items()
        if name != FLAX_JIT
    }
    timings = {name: {"median_s": seconds} for name, seconds in medians.items()}
    parity = {"ok": True, "dtype": "float32", "error": 2.4e-7, "torch_error": 3.1e-7}
    output = {"name": "output", "timings": timings, "jit_speedup_over": speedups}
    return {**facts, "parity": parity, "modes": [output, {"name": "output and weights", "timings": {}}]}


@pytest.fixture
def results(tmp_path):
    conditions = {"quick": False, "inputs": "batch 8", "dtype": "float32", "cores": 2, "cpu": "a CPU", "rounds": 9}
    three = {FLAX_EAGER: 0.010, FLAX_JIT: 0.001, TORCH_EAGER: 0.0025}
    module = make_result(three, module="MyAttn", counterpart="torchref.MyAttn")
    minilm = make_result({**three, PLAIN: 0.003}, batch=8, length=128)
    for name, result in (("module", module), ("minilm", minilm)):
        data = {"suite": name, "conditions": conditions, "results": [result]}
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def run(results, *arguments: str) -> int:
    return table.main(["--readme", str(results / "README.md"), "--results", str(results), *arguments])


def test_rows_and_conditions_stand_between_the_markers(results):
    assert run(results) == 0
    text = (results / "README.md").read_text()
    row = "| `MyAttn` | `torchref.MyAttn` | 2.4e-07 (3.1e-07) | 10× (9.0×–11×) | 2.5× (2.2×–2.8×) |"
    assert row in text
    assert "| 8 × 128 | 2.4e-07 (3.1e-07) | 10.0 ms | 1.00 ms | 2.50 ms | 3.00 ms | 10× (9.0×–11×) | 2.5× (2.2" in text
    assert "Measured on: inputs batch 8, float32 · 2 cores of a CPU" in text
    assert text.startswith("# Title\n<!-- table:modules -->\n") and text.endswith("<!-- /table -->\nend\n")
    assert "old" not in text and text.index(row) < text.index("between") < text.index("| 8 × 128")


def test_every_row_has_as_many_cells_as_the_header(results):
    assert run(results) == 0
    lines = [line for line in (results / "README.md").read_text().splitlines() if line.startswith("|")]
    assert [line.count("|") for line in lines] == [6] * 3 + [9] * 3


def test_check_changes_nothing_and_tells_stale_from_fresh(results):
    assert run(results, "--check") == 1
    assert (results / "README.md").read_text() == README
    assert run(results) == 0
    assert run(results, "--check") == 0
    changed = (results / "module.json").read_text().replace("MyAttn", "Other")
    (results / "module.json").write_text(changed)
    assert run(results, "--check") == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "README.md").write_text(README.replace("table:minilm", "x")), "table:minilm"),
        (lambda folder: (folder / "README.md").write_text(README * 2), "once, got 2"),
        (lambda folder: (folder / "module.json").unlink(), "module.json"),
        (
            lambda folder: (folder / "module.json").write_text(
                (folder / "module.json").read_text().replace('"quick": false', '"quick": true')
            ),
            "quick run",
        ),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_written(results, capsys, damage, message):
    damage(results)
    before = (results / "README.md").read_text()
    assert run(results) == 1
    assert message in capsys.readouterr().err
    assert (results / "README.md").read_text() == before
