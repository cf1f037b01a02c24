"""`jaxattn bench` on tiny sizes: table, JSON, plot, exit codes."""

import json

import pytest
from typer.testing import CliRunner

from jaxattn.cli import app
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, BenchReport, Mode, Timing
from jaxattn.timing import ParityFailure

TINY = ["--batch", "2", "--length", "3", "--embed-dim", "4", "--rounds", "1", "--block-ms", "0"]


class Verdict:
    """A parity report that nothing was computed for."""

    def to_json(self) -> dict:
        return {"ok": True, "rows": []}

    def __str__(self) -> str:
        return "where they differ"


@pytest.fixture
def measured(monkeypatch):
    """What `bench_pair` was asked to measure; it answers with a made report."""
    asked = []

    def bench_pair(torch_module, flax_module, inputs, **how):
        asked.append((torch_module, flax_module, inputs, how))
        times = {FLAX_EAGER: Timing((4e-3,), 1), FLAX_JIT: Timing((1e-3,), 1), TORCH_EAGER: Timing((2e-3,), 1)}
        facts = {"shapes": [list(array.shape) for array in inputs], "dtype": str(inputs[0].dtype)}
        return BenchReport(type(torch_module).__name__, (Mode("output", 0.5, times),), Verdict(), facts)

    monkeypatch.setattr("jaxattn.cli.bench.bench_pair", bench_pair)
    return asked


def bench(*arguments: str):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_table_with_real_parity():
    result = bench("sinusoidal", *TINY)
    assert result.exit_code == 0, result.output
    assert "SinusoidalPositionalEncoding: output" in result.stdout
    for expected in ("Flax eager", "Flax jit", "torch eager", "Flax compilation", "parity ok"):
        assert expected in result.stdout


def test_times_relative_to_torch(measured):
    rows = [line.split() for line in bench("sinusoidal", *TINY).stdout.splitlines() if "ms" in line]
    assert [" ".join(row).strip("│ ") for row in rows] == [
        "Flax eager │ 4.00 ms │ 4.00 ms–4.00 ms │ 1 │ 0.50× (0.50×–0.50×)",
        "Flax jit │ 1.00 ms │ 1.00 ms–1.00 ms │ 1 │ 2.0× (2.0×–2.0×)",
        "torch eager │ 2.00 ms │ 2.00 ms–2.00 ms │ 1 │ 1",
        "Flax compilation │ 500 ms │ │ 1",
    ]


def test_json_is_all_that_is_printed(measured):
    result = bench("multi_head_cross", *TINY, "--num-heads", "2", "--source-length", "5", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["module"] == "MultiHeadCrossAttention"
    assert report["conditions"]["variant"] == "multi_head_cross"
    assert report["conditions"]["shapes"] == [[2, 3, 4], [2, 5, 4]]
    assert report["conditions"]["sizes"] == {"embed_dim": 4, "num_heads": 2, "kv_dim": None}
    assert report["modes"][0]["timings"][FLAX_JIT]["n"] == 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dtypes(measured, dtype):
    result = bench("multihead_torch", *TINY, "--num-heads", "2", "--dtype", dtype, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["conditions"]["dtype"] == dtype
    [(torch_module, flax_module, (query, key, value), how)] = measured
    assert (how["rounds"], how["min_block_s"]) == (1, 0)
    assert str(torch_module.in_proj_weight.dtype) == f"torch.{dtype}"
    assert flax_module.in_proj_weight.dtype == query.dtype == dtype
    assert query is key is value  # torch and Flax take another path for three equal arrays


def test_every_weight_is_random(measured):
    assert bench("encoder_layer", *TINY, "--num-heads", "2", "--dim-feedforward", "4", "--json").exit_code == 0
    for name, parameter in measured[0][0].named_parameters():
        assert len(set(parameter.flatten().tolist()) - {0.0, 1.0}) == parameter.numel(), name


def test_plot_is_written_and_not_overwritten(measured, tmp_path):
    path = tmp_path / "speed.png"
    arguments = ("sinusoidal", *TINY, "--plot", str(path))
    assert bench(*arguments).exit_code == 0
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG") and [file.name for file in tmp_path.iterdir()] == ["speed.png"]
    assert len(measured) == 1
    result = bench(*arguments)
    assert result.exit_code == 1 and "--force" in result.stderr and path.read_bytes() == first
    assert len(measured) == 1  # not in vain


@pytest.mark.parametrize(("name", "message"), [("speed", "must end in"), ("nowhere/speed.png", "does not exist")])
def test_a_plot_that_cannot_be_written_is_refused_before_measuring(measured, tmp_path, name, message):
    result = bench("sinusoidal", *TINY, "--plot", str(tmp_path / name))
    assert result.exit_code == 1 and message in result.stderr and not measured


def test_force_replaces_a_plot(measured, tmp_path):
    path = tmp_path / "speed.png"
    path.write_text("old")
    assert bench("sinusoidal", *TINY, "--plot", str(path), "--force").exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_parity_failure_prints_no_number(monkeypatch, tmp_path):
    def fail(*given, **how):
        raise ParityFailure("Module", Verdict())

    monkeypatch.setattr("jaxattn.cli.bench.bench_pair", fail)
    result = bench("sinusoidal", *TINY, "--json", "--plot", str(tmp_path / "speed.png"))
    assert result.exit_code == 1
    assert result.stdout == "" and list(tmp_path.iterdir()) == []
    assert "where they differ" in result.stderr and "failed its parity check" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown variant 'nothing'"),
        (["my_attn", "--embed-dim", "8"], "is no size of this variant"),
        (["multi_head", "--batch", "0"], "--batch"),
        (["multi_head", "--dtype", "int8"], "--dtype"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, message):
    result = bench(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_sizes_that_do_not_fit_are_a_sentence():
    result = bench("multi_head", "--embed-dim", "8", "--num-heads", "3")
    assert result.exit_code == 1
    assert "`num_heads` must divide `embed_dim`, got num_heads=3, embed_dim=8." in " ".join(result.stderr.split())
