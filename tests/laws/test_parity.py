"""The proof, for every case: weights bit for bit, outputs and gradients in float64, rounding in half and single."""

import pytest
import torch

import jaxattn

from ..cases import CASES, torch_arguments
from .run import made

names = pytest.mark.parametrize("name", [case.name for case in CASES])


@names
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_parity(name, dtype):
    case, _, inputs, arrays = made(name)
    oracle = case.oracle().to(dtype)
    positional, named = torch_arguments(inputs, arrays)
    report = jaxattn.parity.compare(oracle, case.flax(oracle), *positional, **named, **case.flags)
    report.assert_ok()
    compared = [row.what for row in report.rows]
    assert len(compared) >= len(case.output_axes) + len(dict(oracle.named_parameters()))
