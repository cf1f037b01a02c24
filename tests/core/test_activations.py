"""Each activation under its name: values computed from the formulas with math.erf, math.tanh and math.exp."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.activations import ACTIVATIONS, activation_function, gelu_exact

from ..errors import refuses
from ..tolerances import close

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name):
    points = [-2.7, -2.27, -1.0, 0.0, 1.0, 2.27, 2.7]
    assert close(activation_function(name)(jnp.array(points)), [FORMULAS[name](x) for x in points])


def test_published_values_at_one():
    values = [float(activation_function(name)(jnp.float32(1.0))) for name in ("gelu", "gelu_new", "quick_gelu")]
    assert np.allclose(values, [0.8413447, 0.8411920, 0.8457958], atol=1e-7)


def test_a_callable_is_taken_and_an_unknown_name_refused():
    assert activation_function(gelu_exact) is gelu_exact
    for function, known in ((jax.nn.relu, "relu"), (jax.nn.swish, "swish"), (jnp.tanh, "tanh")):
        assert activation_function(function) == activation_function(known)
    with refuses(ValueError, "one of .*'gelu'.*got 'gleu'"):
        activation_function("gleu")
