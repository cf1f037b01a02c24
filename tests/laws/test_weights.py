"""The output is the same whether the weights are asked for or not."""

import jax
import numpy as np
import pytest

from ..cases import CASES
from ..tolerances import close
from .run import made, values

ASKING = [case.name for case in CASES if case.name.startswith("multihead_torch/")]


@pytest.mark.parametrize("name", ASKING)
def test_output_does_not_depend_on_asking(name):
    _, module, inputs, arrays = made(name)
    inputs, arrays = values(inputs, arrays)
    asked, plain = (
        jax.jit(lambda m, arrays, need=need: m(*inputs, **arrays, need_weights=need))(module, arrays)
        for need in (True, False)
    )
    assert plain.weights is None and asked.weights is not None
    assert np.isfinite(np.asarray(plain.output)).all() and close(asked.output, plain.output)
