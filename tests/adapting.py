"""Arrays and comparisons for the tests of as_attention_fn."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .inputs import B, G, K, S, T, generator
from .tolerances import FLOAT64

N, D = K * G, 24
SINGLE = 4e-6  # two float32 runs, relative to max(1, max|ref|)


def close(got: Any, expected: Any, tolerance: float) -> None:
    """The same tree of arrays of the same shapes and dtypes."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        scale = max(1.0, float(np.max(np.abs(theirs), initial=0.0)))
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=0, atol=tolerance)


def agree(results: Iterable[Any]) -> None:
    """Ours and theirs, in float64."""
    ours, theirs = results
    close(ours, theirs, FLOAT64)


def draw(*shape: int, dtype: Any = np.float32, seed: str = "adapters") -> Any:
    return generator(f"{seed} {shape}").normal(size=shape).astype(dtype)


def padded(rows: int = T) -> Any:
    """[B, 1, rows, S] float 0/1 as Flax makes it; the last query of example 0 has nothing to attend."""
    lengths = np.array([S, 3, 5])
    mask = nnx.make_attention_mask(jnp.ones((B, rows)), jnp.arange(S) < lengths[:, None], dtype=jnp.float32)
    return np.array(mask.at[0, :, -1].set(0.0))
