"""The implementation for few queries, against the dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import dot_product_attention, masks

from ..inputs import B, G, H, K, S, V, generator
from ..tolerances import FLOAT64


def draw(name: str, length: int):
    rng = generator(name)
    shapes = ((B, length, K * G, H), (B, S, K, H), (B, S, K, V))
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("length", [1, 3])
def test_equals_dense_in_value_and_gradient(length):
    arrays = draw("decode", length)
    lengths = jnp.array([S, 2, 0][:B])

    def run(q, k, v, implementation):
        options = {"mask": masks.padding(lengths), "soft_cap": 2.0, "empty_row": "uniform"}
        result = dot_product_attention(q, k, v, implementation=implementation, return_weights=True, **options)
        return (result.output**2).sum() + (result.weights**3).sum(), result

    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(run, (0, 1, 2), has_aux=True), static_argnums=3)
        (_, ours), grads = both(*arrays, "decode")
        (_, dense), expected = both(*arrays, "dense")
        pairs = zip(jax.tree.leaves((ours, grads)), jax.tree.leaves((dense, expected)), strict=True)
        assert max(float(jnp.abs(a - b).max()) for a, b in pairs) <= FLOAT64


def test_what_is_not_finite_in_one_head_stays_there():
    """All heads are multiplied by all: 0 · ∞ must not carry a head's infinity to the next one."""
    q, k, v = (array.astype(np.float32) for array in draw("infinite", 1))
    k[0, 1, 0, 2], v[1, 2, 1, 1] = np.inf, np.nan
    ours, dense = (dot_product_attention(q, k, v, implementation=name).output for name in ("decode", "dense"))
    assert np.array_equal(np.isfinite(ours), np.isfinite(dense))
    assert 0 < np.isfinite(ours).sum() < ours.size


def test_batch_axes_and_low_precision():
    q, k, v = (jnp.asarray(array, jnp.bfloat16)[:, None] for array in draw("low", 2))
    ours, dense = (dot_product_attention(q, k, v, implementation=name).output for name in ("decode", "dense"))
    assert ours.dtype == jnp.bfloat16 and ours.shape == dense.shape
    assert float(jnp.abs(ours - dense).astype(jnp.float32).max()) <= 4 * float(jnp.finfo(jnp.bfloat16).eps)
    assert jax.vmap(lambda *a: dot_product_attention(*a, implementation="decode").output)(q, k, v).shape == dense.shape
