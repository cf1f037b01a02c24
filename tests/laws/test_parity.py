"""The proof, for every case: weights bit for bit, outputs and gradients in float64, rounding in half and single."""

import pytest
import torch

import jaxattn

from ..cases import CASES, torch_arguments
from .run import made

#: In float32 tests/torch_nn draws hundreds of calls of these.
DRAWN = ("multihead_torch/", "encoder/", "decoder/", "transformer/")
BOTH = [
    pytest.param(case.name, dtype, id=f"{case.name}-{str(dtype).removeprefix('torch.')}")
    for case in CASES
    for dtype in (torch.float32, torch.bfloat16)
    if dtype == torch.bfloat16 or not case.name.startswith(DRAWN)
]


@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_parity(name, dtype):
    case, _, inputs, arrays = made(name)
    oracle = case.oracle().to(dtype)
    positional, named = torch_arguments(inputs, arrays)
    report = jaxattn.parity.compare(oracle, case.flax(oracle), *positional, **named, **case.flags)
    report.assert_ok()
    compared = [row.what for row in report.rows]
    assert len(compared) >= len(case.output_axes) + len(dict(oracle.named_parameters()))
