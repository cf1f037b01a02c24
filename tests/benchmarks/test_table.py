"""README's tables from made results."""

import json

import pytest

from benchmarks import table
from benchmarks.minilm import NNX_ATTENTION, PLAIN
from benchmarks.overhead import BARE
from benchmarks.systems import FLAX, JAX_NN, OURS, TORCH
from jaxattn.interleaved import COMPILED, FLAX_EAGER, FLAX_JIT, TORCH_EAGER

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


TARGETS = [
    {"what": "over torch SDPA, geometric mean", "measured": "1.2×", "wanted": "≥ 1×", "met": True},
    {"what": "compilation, longest (a)", "measured": "2.50 s", "wanted": "≤ 2.00 s", "met": False},
]
STATED = (
    "Targets: over torch SDPA, geometric mean 1.2× (target ≥ 1×); "
    "compilation, longest (a) 2.50 s (target ≤ 2.00 s, missed)."
)


def add(folder, name: str, **data) -> str:
    """README's table of a further suite."""
    conditions = json.loads((folder / "module.json").read_text())["conditions"]
    (folder / f"{name}.json").write_text(json.dumps({"conditions": conditions, "targets": TARGETS, **data}))
    (folder / "README.md").write_text(f"{README}<!-- table:{name} -->\n<!-- /table -->\n")
    assert run(folder) == 0
    text = (folder / "README.md").read_text().partition(f"<!-- table:{name} -->")[2]
    assert STATED in text and "Measured on: inputs batch 8" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    return text


@pytest.mark.parametrize("suite", ["op", "op_grad"])
def test_the_operation_has_full_and_causal_beside_each_other(results, suite):
    def point(label: str, milliseconds: float, **over: float) -> dict:
        ratios = {name.replace("_", " "): {"median": value} for name, value in over.items()}
        return {"label": label, "timings": {OURS: {"median_s": milliseconds / 1e3}}, "ratio_over": ratios}

    points = [
        point("B1 N8 T128 H64 full", 1.5, torch_SDPA=1.1, **{JAX_NN: 4.0, FLAX: 5.0}),
        point("B1 N8 T128 H64 causal", 1.2, torch_SDPA=0.9, **{JAX_NN: 3.0, FLAX: 4.0}),
        point("B1 N32 K8 T9 H64 causal", 3.0, torch_SDPA=1.0),
    ]
    means = {TORCH: {"geometric_mean": 1.2}, JAX_NN: {"geometric_mean": 3.4}, FLAX: {"geometric_mean": 4.5}}
    text = add(results, suite, results=points, summary=means)
    assert "| shape | full: ours | full: over torch SDPA | full: over jax.nn | causal: ours |" in text
    assert "| B1 N8 T128 H64 | 1.50 ms | 1.1× | 4.0× | 1.20 ms | 0.90× | 3.0× |" in text
    assert "| B1 N32 K8 T9 H64 | – | – | – | 3.00 ms | 1.0× | – |" in text
    assert "over torch SDPA 1.2×, over jax.nn 3.4×, over flax.nnx 4.5×" in text


def test_memory_in_mib_by_length(results):
    rows = [{"label": "jaxattn, full, forward", "bytes": {"1024": 2**20, "2048": 2.5 * 2**20}}]
    text = add(results, "memory", results=rows)
    assert "| system, mask, computation | T = 1024 | T = 2048 |" in text
    assert "| jaxattn, full, forward | 1.0 | 2.5 |" in text


def test_overhead_by_way_of_calling(results):
    def timing(microseconds: float) -> dict:
        return {key: microseconds / 1e6 for key in ("median_s", "q1_s", "q3_s")}

    timings = {BARE: timing(100.0), COMPILED: timing(150.0)}
    over = {COMPILED: {"median": 1.5}}
    text = add(results, "overhead", results=[{"arrays": 144, "timings": timings, "over_bare": over}])
    assert f"| {COMPILED} | 150 µs | 150 µs–150 µs | 1.5× |" in text and f"| {BARE} | 100 µs |" in text
    assert "holds 144 arrays" in text


def test_minilm_shows_the_further_candidates_where_they_were_measured(results):
    data = json.loads((results / "minilm.json").read_text())
    [result] = data["results"]
    result["modes"][0]["timings"] |= {COMPILED: {"median_s": 0.0009}, NNX_ATTENTION: {"median_s": 0.0021}}
    (results / "minilm.json").write_text(json.dumps({**data, "targets": TARGETS}))
    assert run(results) == 0
    text = (results / "README.md").read_text()
    assert "| 10.0 ms | 1.00 ms | 900 µs | 2.10 ms | 2.50 ms | 3.00 ms |" in text and STATED in text
    assert "flax.nnx.dot_product_attention in place of our operation" in text


def test_results_without_a_place_in_readme_are_an_error(results, capsys):
    (results / "op.json").write_text("{}")
    assert run(results) == 1
    assert "table:op" in capsys.readouterr().err
