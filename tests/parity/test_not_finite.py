"""What is finite on neither side is counted and shown, and proves nothing."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.cli.verdicts import narrow_table, trace_sentence, training_sentence
from jaxattn.parity import compare, trace, train
from jaxattn.parity.coverage import Coverage, parts_sentence
from jaxattn.parity.criterion import deviation
from jaxattn.parity.page.facts import verdict

B, T, D, F = 3, 5, 6, 4


@pytest.fixture
def partly(randomised) -> tuple[nn.Module, Any]:
    """Three of four biases are NaN."""
    module = randomised(nn.Linear(D, F))
    with torch.no_grad():
        module.bias[:3] = torch.nan
    return module, jaxattn.from_torch(module)


def test_counted_apart_from_the_rest() -> None:
    """rms is over what was measured: √((3² + 4²)/2)."""
    found = deviation(np.array([3.0, 4.0, np.nan, np.inf]), np.array([0.0, 0.0, np.nan, np.inf]))
    assert (found.size, found.not_finite, found.problem) == (4, 2, None)
    assert found.rms == pytest.approx(12.5**0.5)


def test_the_verdict_over_a_part_says_which(partly, draw) -> None:
    x = draw(B, D)
    report = compare(*partly, x)
    row = report.row("output")
    assert (row.not_finite, row.elements, row.word) == (9, 12, "ok for a part")
    assert "9 of 12 elements are finite on neither side: not compared" in row.verdict
    # The output, and gradients of the input, the weight and the bias, which are all numbers.
    sentence = f"finite on neither side: 9 of {12 + B * D + D * F + F} elements, in 1 of 4 tensors"
    assert sentence in report.headline and sentence in " ".join(str(report).split())
    written = json.loads(json.dumps(report.to_json()))
    assert sentence in written["partly"] and written["rows"][1]["not_finite"] == 9
    traced = trace(*partly, x)
    assert traced.ok and traced.layers[-1].not_finite == 9 and "9 of 12 elements" in traced.headline
    assert "9 of 12 elements" in trace_sentence(traced)
    assert "9 of 12 elements" in str([str(cell) for column in narrow_table(report).columns for cell in column.cells])
    page = verdict(dataclasses.replace(report, trace=traced))
    assert page.word == "Parity holds for a part" and sentence in "; ".join(page.sentences)


def test_the_page_shows_it(partly, draw, tmp_path) -> None:
    compare(*partly, draw(B, D)).save_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Parity holds for a part" in text and "9 of 12 elements are finite on neither side" in text


def test_a_comparison_of_nothing_is_no_proof(partly, draw) -> None:
    module, twin = partly
    report = compare(module, twin, draw(0, D))
    assert not report.ok and "nothing to compare" in report.row("outputs").verdict
    with torch.no_grad():
        module.bias[:] = torch.nan
    traced = trace(module, jaxattn.from_torch(module), draw(B, D))
    assert not traced.ok and "nothing is proven" in traced.headline and "nothing is proven" in trace_sentence(traced)
    assert not trace(module, twin, draw(0, D)).ok


def test_infinities_on_both_sides_are_counted(randomised, draw) -> None:
    module = randomised(nn.Linear(D, F))
    with torch.no_grad():
        module.bias[0] = torch.inf
    row = compare(module, jaxattn.from_torch(module), draw(B, D)).row("output")
    assert (row.ok, row.not_finite) == (True, 3)


def test_empty_rows_of_attention_are_reported_and_fail_nothing(randomised, draw) -> None:
    """torch gives NaN for a query with nothing to attend, and then for every gradient of the output projection."""
    module, x = randomised(nn.MultiheadAttention(D, 2, batch_first=True)), draw(B, T, D)
    blocked = np.zeros((T, T), bool)
    blocked[2] = True
    report = compare(module, jaxattn.from_torch(module), x, x, x, attn_mask=blocked)
    row = report.row("weights")
    assert row.ok and (row.not_finite, row.elements) == (B * T, B * T * T)
    row = report.row("gradient of out_proj.weight")
    assert row.ok and row.word == "nothing compared" and row.not_finite == row.elements
    assert report.row("gradient of out_proj.bias").word == "ok"
    assert "nothing to compare in 2 of 7 tensors" in report.headline


def test_an_overflow_of_both_at_the_low_dtype_is_counted(randomised) -> None:
    """65504 is float16's largest number."""
    module = randomised(nn.Linear(1, 2, bias=False)).half()
    with torch.no_grad():
        module.weight[:] = torch.tensor([[2.0], [0.5]])
    row = compare(module, jaxattn.from_torch(module), np.full((1, 1), 6e4, np.float16)).row("output")
    assert (row.ok, row.not_finite, row.low_not_finite) == (True, 0, 1)
    assert "1 of 2 elements at the low dtype are finite on neither side" in row.verdict


class Grown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x):
        return x * torch.exp(self.w)


class FlaxGrown(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.array([2.0, 3.0]))

    def __call__(self, x):
        return x * jnp.exp(self.w[...])


def diverging(sign: float) -> Any:
    """The first step is finite, and leaves parameters of up to e300, whose exponential is infinite."""

    def loss(output, target):
        return sign * output.sum() + 0 * target.sum()

    return train(
        Grown(),
        FlaxGrown(),
        lambda parameters: torch.optim.SGD(parameters, lr=1e3),
        [(np.ones((1, 2)), np.ones(()))],
        5,
        loss=(loss, loss),
    )


def test_steps_after_training_turned_nan_are_not_counted() -> None:
    report = diverging(-1.0)
    assert [step.proves for step in report.steps] == [True, False, False, False, False]
    assert report.ok and report.proven == 1
    assert "1 steps agree; from step 1 on" in report.headline and "4 of 5 steps prove nothing" in report.headline
    assert training_sentence(report).startswith("1 step of SGD agree") and "from step 1 on" in training_sentence(report)
    assert report.to_json()["proven"] == 1


def test_steps_that_stay_finite_all_count() -> None:
    report = diverging(1.0)
    assert report.ok and report.proven == 5 and not report.partly


def test_training_that_starts_with_nan_proves_nothing(partly, draw) -> None:
    module, twin = partly
    report = train(module, twin, lambda parameters: torch.optim.SGD(parameters, lr=0.1), [(draw(B, D),)], 2)
    assert not report.ok and report.proven == 0
    assert "nothing is proven" in training_sentence(report)
    with pytest.raises(AssertionError, match="prove nothing"):
        report.assert_ok()


def test_coverage_in_words() -> None:
    assert parts_sentence([Coverage(4), Coverage(3)], "tensors") == ""
    assert Coverage(0).word == Coverage(3, 3).word == "nothing compared"
    sentence = parts_sentence([Coverage(4), Coverage(3, 3)], "calls")
    assert "finite on neither side: 3 of 7 elements, in 1 of 2 calls; nothing to compare in 1 of 2 calls" in sentence
