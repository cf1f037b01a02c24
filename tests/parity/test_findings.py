"""What a cause may say: two values that read the same are none, and of two that fit neither is taken."""

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from jaxattn.parity import trace
from jaxattn.parity.tracing.findings import Cause, either, telling


@pytest.mark.parametrize(
    ("value", "other", "text"),
    [(2.0, 1.0, "2"), (1.00001, 1.0, "1.00001"), (0.125, 0.1250001, "0.125"), (1 + 2**-52, 1.0, "1.0000000000000002")],
)
def test_a_value_is_told_from_the_other(value, other, text):
    assert telling(value, other) == text
    assert float(text) != other


def test_of_causes_that_fit_all_are_named():
    one, other = Cause("scale", "is 2 times"), Cause("residual added", "holds x twice")
    assert either([]) is None and either([one, one]) == one
    both = either([one, other])
    assert both is not None and both.name == "scale or residual added" and "; or " in both.sentence


@pytest.mark.parametrize("factor", [1.001, 1.00001])
def test_no_cause_says_one_times(factor):
    """A weight a little off is scaled, or differs; it is never "1 times torch's"."""
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(np.random.default_rng(0).normal(size=tuple(parameter.shape))))
    broken = jaxattn.from_torch(module)
    kernel = broken.layers[2].kernel
    kernel[...] = kernel[...] * np.float32(factor)
    report = trace(module, broken, np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32))
    assert not report.ok and report.cause is not None
    said = str(report.cause)
    assert " 1 times" not in said and ("1.001 times" in said or "differs" in said)
