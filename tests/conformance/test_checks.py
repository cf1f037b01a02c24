"""Every check passes on a library that keeps to the rules, and fails on one that breaks just this."""

import pytest

from jaxattn.conformance import CHECKS, run
from jaxattn.conformance.running import _result

from .fake import JAX, Fake, fake_for

BY_ID = {check.id: check for check in CHECKS}
FAULTS = [  # check, fault, what came
    ("mask_polarity", "inverted mask", "True blocks"),
    ("mask_polarity", "mask ignored", "mask ignored"),
    ("mask_by_head", "swapped mask", "examples and heads swapped"),
    ("float_mask", "float mask taken", "non-zero = may attend"),
    ("float16_mask", "fill overflows", "NaN"),
    ("empty_row", "finite fill", "uniform"),
    ("empty_row", "plain softmax", "NaN"),
    ("empty_row_by_bias", "plain softmax", "NaN"),
    ("empty_row_gradients", "unsafe gradient", "not finite: dq, dk"),
    ("causal_alignment", "bottom-right", "bottom-right for T = 2, S = 4"),
    ("causal_and_mask", "mask ignored", "mask ignored"),
    ("causal_padding_weights", "not causal with weights", "causal ignored"),
    ("window", "window ignored", "ignored"),
    ("lengths", "lengths ignored", "ignored"),
    ("bias", "boolean bias", "taken as a boolean"),
    ("blocked_values", "small fill", "1e+06"),
    ("blocked_nan", "NaN spreads", "the other example: nan"),
    ("blocked_gradients", "gradient leaks", "not 0: dv"),
    ("scale_default", "no scale", "1"),
    ("scale_given", "given scale ignored", "ignored"),
    ("grouped_heads", "tiled heads", "tile, 0 1 0 1"),
    ("value_width", "features reversed", "6.5 5.5 4.5"),
    ("no_batch_axis", "a batch axis too many", "shape (1, 2, 3, 3)"),
    ("two_batch_axes", "examples mixed", "1 1 1 1 1 1"),
    ("output_dtype", "output float32", "float32"),
    ("logits_float32", "rounded logits", "rounded to bfloat16"),
    ("softmax_float32", "rounded softmax", "off by 2.7 units"),
    ("float64", "narrow softmax", "error"),
    ("float64", "output float32", "output float32"),
    ("weights_values", "averaged weights", "shape (1, 2, 4)"),
    ("weights_asked", "other with weights", "differs by"),
    ("weights_asked_bfloat16", "rounded softmax with weights", "differs by 0.008"),
    ("dropout_scaling", "unscaled dropout", "0 0.125"),
    ("dropout_per_element", "one draw", "one draw for all examples and heads"),
    ("dropout_weights", "dropped weights", "after dropout"),
]


@pytest.mark.parametrize("check", BY_ID)
def test_a_library_that_keeps_the_rules_passes(check):
    result = _result(BY_ID[check], fake_for(check))
    assert result.verdict == "pass", result


@pytest.mark.parametrize(("check", "fault", "came"), FAULTS)
def test_what_breaks_a_rule_differs(check, fault, came):
    result = _result(BY_ID[check], fake_for(check, fault))
    assert result.verdict == "differs" and result.came.startswith(came), result


def test_every_check_can_fail():
    assert {check for check, _, _ in FAULTS} | {"float16_jit"} == set(BY_ID)


def test_an_error_of_the_library_is_a_refusal():
    result = _result(BY_ID["float16_jit"], fake_for("float16_jit", "refuses float16"))
    assert (result.verdict, result.came) == ("refused", "ValueError: float16 is too narrow")


def test_what_has_no_argument_is_not_offered():
    results = run(Fake("nothing offered"))
    assert [result.check for result in results] == list(BY_ID)
    wrong = {result.check for result in results if result.verdict != "not offered"}
    assert wrong == set() and {result.came for result in results} == {"no attention"}


def test_another_name_than_those_of_the_targets_is_an_error():
    with pytest.raises(ValueError, match="unknown target 'torch'; known are jaxattn, jax.nn"):
        run("torch")


def test_names_and_questions_are_unique():
    assert len(BY_ID) == len(CHECKS) == len({check.question for check in CHECKS}) and set(BY_ID) >= JAX
