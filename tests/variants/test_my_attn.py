"""MyAttn: the classic sizes, any batch axes, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn

from ..errors import refuses
from ..inputs import generator


@pytest.fixture(scope="module")
def classic():
    return jaxattn.MyAttn(32, 32, 32, 64, 32, rngs=nnx.Rngs(0))


def draw(*batch: int):
    rng = generator("my_attn")
    return [jnp.asarray(rng.normal(size=(*batch, *shape)), jnp.float32) for shape in ((1, 32), (1, 32), (32, 64))]


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3), (0,)])
def test_shapes_for_any_batch_axes(classic, batch):
    output, weights = classic(*draw(*batch))
    assert output.shape == (*batch, 1, 32) and weights.shape == (*batch, 32)


def test_every_example_is_treated_by_itself(classic):
    """The code people have reads Q[0] and K[0] for the whole batch."""
    Q, K, V = draw(3)
    output, _ = classic(Q, K, V)
    other, _ = classic(Q.at[0].add(1.0), K.at[0].add(1.0), V)
    assert not np.array_equal(output[0], other[0]) and np.array_equal(output[1:], other[1:])


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (((1, 2, 32), (1, 1, 32), (1, 32, 64)), r"`Q` must have 1 row\(s\)"),
        (((1, 1, 32), (1, 3, 32), (1, 32, 64)), r"`K` must have 1 row\(s\)"),
        (((1, 1, 32), (1, 1, 32), (1, 31, 64)), r"`V` must have 32 row\(s\)"),
        (((1, 1, 31), (1, 1, 32), (1, 32, 64)), r"`Q` must be \[\*B, 1, query_size\] with last axis 32"),
        (((1, 1, 32), (2, 1, 32), (1, 32, 64)), "batch axes of `Q`, `K`, `V` must be equal"),
        (((32,), (1, 32), (32, 64)), "`Q` must be"),
    ],
)
def test_bad_shapes(classic, shapes, sentence):
    with refuses(ValueError, sentence):
        classic(*(np.ones(shape, np.float32) for shape in shapes))


def test_integers_are_refused(classic):
    with refuses(TypeError, "`Q` must be a floating-point array, got dtype int32"):
        classic(np.ones((1, 32), np.int32), np.ones((1, 32), np.float32), np.ones((32, 64), np.float32))
