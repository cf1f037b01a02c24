"""What the tests of compile call: a module that counts, and results compared."""

from typing import Any

import jax
import numpy as np
from flax import nnx

from .capturing import ROUNDING, D, make


class Counted(nnx.Module):
    """A module that counts in Python how often it runs, that is how often it is traced."""

    def __init__(self, inner: Any = None):
        self.inner = make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0))) if inner is None else inner
        self.rate = 1.0
        self.sizes: Any = [1, 2]
        self.runs = nnx.static(Counter())

    def __call__(self, x, *extra, scale=None, flag=False, options=None):
        self.runs.count += 1
        x = self.inner(x) * self.rate * len(self.sizes)
        if flag:
            x = -x
        return x if scale is None else x * scale


class Counter:
    count = 0


def assert_same(result, expected, atol: float = ROUNDING) -> None:
    left, right = jax.tree.leaves(result), jax.tree.leaves(expected)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)
