"""`jaxattn demo`: the whole way once, and a directory that is there whole or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxattn.cli import app, demo
from jaxattn.convert.files import read_checkpoint
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, BenchReport, Mode, Timing
from jaxattn.parity.report import ParityReport, Row
from jaxattn.parity.trace_report import TraceReport

MODULES = ["MyAttn", "MultiHeadSelfAttention", "MultiHeadCrossAttention", "TransformerEncoder"]


def run(*arguments: object):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture
def quick(monkeypatch):
    """Files without what takes time to make."""

    class Report:
        report = None

        def save_html(self, path: Path) -> None:
            path.write_text("new")

    def make(directory: Path, bar: object) -> dict:
        (directory / demo.TORCH_FILE).write_text("new")
        return {demo.SHOWN: Report()}

    monkeypatch.setattr(demo, "_convert_and_measure", make)
    monkeypatch.setattr(demo, "_look_inside", lambda *arguments: (Report(), None))
    for name in ("_write_report", "_shared_conditions", "draw_speed", "draw_attention", "_print"):
        monkeypatch.setattr(demo, name, lambda *arguments: None)


def test_the_demo(tmp_path):
    """As a user runs it: another process, an empty directory, no options."""
    code = "from jaxattn.cli import app; app()"
    command = [sys.executable, "-c", code, "demo"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr and "Warning" not in result.stderr
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["jaxattn-demo"]
    directory = tmp_path / "jaxattn-demo"
    assert {path.name for path in directory.iterdir()} == demo.FILES
    assert "TransformerEncoder, layer by layer: all 21 modules agree" in result.stdout
    assert "TransformerEncoder, trained: 5 steps of AdamW agree" in result.stdout
    mistake = "transposed on purpose: first divergence at layers.1.self_attn.out_proj: transposed weight"
    assert mistake in result.stdout
    assert "Proved: all 44 tensors" in result.stdout and all(module in result.stdout for module in MODULES)
    assert all(f"jaxattn-demo/{name}" in result.stdout for name in demo.FILES)
    reports = json.loads((directory / demo.REPORT).read_text())
    assert [report["module"] for report in reports.values()] == MODULES
    assert all(report["parity"]["ok"] and report["parity"]["dtype"] == "float32" for report in reports.values())
    rows = {row["what"]: row for row in reports["my_attn"]["parity"]["rows"]}
    assert rows["output"]["shape"] == [4, 1, 32] and rows["weights"]["shape"] == [4, 32]
    assert rows["output"]["error_float64"] < 1e-12
    assert all(mode["jit_speedup_over"] for report in reports.values() for mode in report["modes"])
    inside = reports["encoder"]["parity"]
    assert inside["trace"]["ok"] and inside["trace"]["maps"] == [] and inside["training"]["ok"]
    page = (directory / demo.PAGE).read_text()
    assert all(part in page for part in ("TransformerEncoder", "layers.1.self_attn", "AdamW", "data:image/png"))
    for picture in (demo.SPEED, demo.HEATMAP):
        assert (directory / picture).read_bytes().startswith(b"\x89PNG") and (
            directory / picture
        ).stat().st_size > 2**13
    assert "encoder.layers.1.norm2.weight" in read_checkpoint(directory / demo.TORCH_FILE)
    back = CliRunner().invoke(
        app, ["convert", str(directory / demo.FLAX_FILES["encoder"]), "--to", str(tmp_path / "back.safetensors")]
    )
    assert back.exit_code == 0, back.stderr


@pytest.mark.usefixtures("quick")
def test_a_whole_demo_is_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    for name in demo.FILES:
        (tmp_path / "out" / name).write_text("old")
    assert run("--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / demo.TORCH_FILE).read_text() == "new" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("held", "sentence"),
    [((), "pass --force"), ((demo.REPORT,), "pass --force"), ((*demo.FILES, "thesis.tex"), "more than a demo")],
)
def test_other_directories_are_refused(held, sentence, tmp_path):
    (tmp_path / "out").mkdir()
    for name in held:
        (tmp_path / "out" / name).write_text("mine")
    result = run("--out", tmp_path / "out")
    assert result.exit_code == 1 and sentence in result.stderr
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == dict.fromkeys(held, "mine")


@pytest.mark.usefixtures("quick")
def test_force_replaces_part_of_a_demo(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / demo.REPORT).write_text("old")
    (tmp_path / "out" / demo.SPEED).write_text("old")
    assert run("--out", tmp_path / "out", "--force").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {demo.PAGE, demo.TORCH_FILE}
    assert (tmp_path / "out" / demo.TORCH_FILE).read_text() == "new" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["other files", "file", "link", "no parent"])
def test_force_replaces_nothing_else(kind, tmp_path):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        out.symlink_to(tmp_path / "elsewhere")
    elif kind == "other files":
        out.mkdir()
        (out / demo.REPORT).write_text("old")
        (out / "thesis.tex").write_text("mine")
    else:
        out = tmp_path / "no" / "out"
    before = sorted(tmp_path.rglob("*"))
    result = run("--out", out, "--force")
    assert result.exit_code == 1 and result.stderr.startswith("error: ") and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("busy", "shown"), [(0.4, True), (1.4, False), (None, True)])
def test_no_times_are_shown_while_others_compute(busy, shown, monkeypatch, capsys):
    timings = {name: Timing((0.0625,), 1) for name in (FLAX_EAGER, FLAX_JIT, TORCH_EAGER)}
    row = Row("output", "output", (2, 3), 1e-16, 1e-12, 2e-7, 3e-7, 9e-7)
    parity = ParityReport("T", "F", "float32", 0, (row,))
    facts = {"cores": 2, "shapes": [[2, 3]], "cores_busy_elsewhere": busy}
    report = BenchReport("T", (Mode("all results", 1.0, timings),), parity, facts)
    demo._print({"t": report}, parity, TraceReport("T", "F", (), first="a"), Path("out"))
    said = capsys.readouterr().out
    assert ("62.5 ms" in said) == ("1.0×" in said) == shown and "1.0e-16" in said
    line = "Other programs kept 1.4 of 2 cores busy: times would say nothing about speed.\n"
    assert said.startswith(line) != shown


def test_a_failed_parity_leaves_nothing(tmp_path, monkeypatch):
    class Report:
        ok = False

        def __str__(self) -> str:
            return "where they differ"

    monkeypatch.setattr("jaxattn.parity.compare", lambda *arguments: Report())
    result = run("--out", tmp_path / "out")
    assert result.exit_code == 1 and "where they differ" in result.stderr
    assert "ParityFailure: MyAttn failed its parity check" in result.stderr and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_leaves_the_earlier_demo(error, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise error

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / demo.REPORT).write_text("old")
    monkeypatch.setattr(demo, "draw_speed", interrupted)
    assert run("--out", tmp_path / "out", "--force").exit_code != 0
    assert [path.name for path in tmp_path.rglob("*")] == ["out", demo.REPORT]
    assert (tmp_path / "out" / demo.REPORT).read_text() == "old"
