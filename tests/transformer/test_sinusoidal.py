"""SinusoidalPositionalEncoding: values by math.sin and math.cos, precision of positions, limits."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn

from ..errors import refuses


@pytest.mark.parametrize("embed_dim", [6, 7, 1])
def test_values(embed_dim):
    got = np.asarray(jaxattn.SinusoidalPositionalEncoding(embed_dim)(np.zeros((11, embed_dim), np.float32)))
    for t in range(11):
        for feature in range(embed_dim):
            angle = t / 10000 ** (2 * (feature // 2) / embed_dim)
            assert abs(got[t, feature] - (math.cos(angle) if feature % 2 else math.sin(angle))) < 1e-7


def test_positions_that_half_precision_cannot_hold():
    """bfloat16 rounds 257 to 256, whose cosine is −0.0398 instead of 0.8193."""
    module = jaxattn.SinusoidalPositionalEncoding(2)
    output = module(jnp.zeros((258, 2), jnp.bfloat16))
    assert output.dtype == jnp.bfloat16
    assert abs(float(output[257, 1]) - 0.8193) < 0.004


def test_it_adds_and_has_no_parameters():
    module = jaxattn.SinusoidalPositionalEncoding(4, max_len=3)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.allclose(np.asarray(module(x)) - x, np.asarray(module(np.zeros_like(x))), atol=1e-6)
    assert jaxattn.state_dict(module) == {} and not nnx.to_flat_state(nnx.state(module))


def test_limits():
    module = jaxattn.SinusoidalPositionalEncoding(4, max_len=3)
    with refuses(ValueError, "at most max_len=3 tokens"):
        module(np.zeros((4, 4), np.float32))
    with refuses(ValueError, "last axis 4"):
        module(np.zeros((3, 5), np.float32))
