"""linear_call: a linear function with a transpose of its own, under every transformation."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.linear import linear_call

from ..inputs import generator

RNG = generator("linear")
MATRIX = RNG.normal(size=(5, 3)).astype(np.float32)
X = RNG.normal(size=3).astype(np.float32)
OFFSET = RNG.normal(size=5).astype(np.float32)
COTANGENT = RNG.normal(size=5).astype(np.float32)
#: Which methods of the rule were called.
CALLS: list[str] = []


@dataclass(frozen=True)
class Product:
    """x, y → (A³ x + y, 2 y), the power of each entry; `reference` is what the others are by definition."""

    power: int

    def apply(self, residuals: Any, operands: Any) -> Any:
        CALLS.append("apply")
        return self._by_definition(residuals, operands)

    def transpose(self, residuals: Any, cotangents: Any) -> Any:
        CALLS.append("transpose")
        first, second = cotangents["sum"], cotangents["twice"]
        return {"x": (residuals[0] ** self.power).T @ first, "y": first + 2 * second}

    def reference(self, residuals: Any, operands: Any) -> Any:
        CALLS.append("reference")
        return self._by_definition(residuals, operands)

    def _by_definition(self, residuals: Any, operands: Any) -> Any:
        total = residuals[0] ** self.power @ operands["x"] + operands["y"]
        return {"sum": total, "twice": 2 * operands["y"]}


def ours(matrix, x, y):
    return linear_call(Product(3), (matrix,), {"x": x, "y": y})


def plain(matrix, x, y):
    return {"sum": matrix**3 @ x + y, "twice": 2 * y}


def loss(function, matrix, x, y):
    outputs = function(matrix, x, y)
    return jnp.sum(jnp.sin(outputs["sum"])) + jnp.vdot(outputs["twice"], outputs["sum"])


def stack(array, axis=0):
    return np.stack([array, 2 * array, -array], axis)


ONE, ALL = (MATRIX, X, OFFSET), (stack(MATRIX), stack(X), stack(OFFSET))
BOTH = (0, 1, 2)
TRANSFORMATIONS = {
    "call": lambda f: f(*ONE),
    "jit": lambda f: jax.jit(f)(*ONE),
    "vmap": lambda f: jax.vmap(f)(*ALL),
    "vmap, matrix shared": lambda f: jax.vmap(f, (None, 0, 0))(MATRIX, *ALL[1:]),
    "vmap, x shared": lambda f: jax.vmap(f, (0, None, None))(ALL[0], X, OFFSET),
    "vmap, one operand shared": lambda f: jax.vmap(f, (None, 0, None))(MATRIX, ALL[1], OFFSET),
    "vmap along other axes": lambda f: jax.vmap(f, (2, 1, None), 1)(stack(MATRIX, 2), stack(X, 1), OFFSET),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (None, 0, None)), (0, None, 0))(ALL[0], ALL[1], ALL[2]),
    "jvp": lambda f: jax.jvp(f, ONE, tuple(2 * a for a in ONE)),
    "jvp, only the matrix": lambda f: jax.jvp(lambda m: f(m, X, OFFSET), (MATRIX,), (MATRIX + 1,)),
    "jvp, only x": lambda f: jax.jvp(lambda x: f(MATRIX, x, OFFSET), (X,), (X + 1,)),
    "vmap of jvp": lambda f: jax.vmap(lambda *changes: jax.jvp(f, ONE, changes))(*ALL),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f, (None, 0, None)), (MATRIX, ALL[1], OFFSET), (MATRIX, -ALL[1], OFFSET)),
    "grad": lambda f: jax.grad(partial(loss, f), BOTH)(*ONE),
    "grad, only the matrix": lambda f: jax.grad(partial(loss, f))(*ONE),
    "vmap of grad": lambda f: jax.vmap(jax.grad(partial(loss, f), BOTH), (None, 0, None))(MATRIX, ALL[1], OFFSET),
    "grad of vmap": lambda f: jax.grad(lambda *a: jax.vmap(partial(loss, f), (0, None, 0))(*a).sum(), BOTH)(
        ALL[0], X, ALL[2]
    ),
    "grad of vmap of vmap": lambda f: jax.grad(
        lambda *a: jax.vmap(jax.vmap(partial(loss, f), (None, 0, None)), (0, None, None))(*a).sum(), BOTH
    )(ALL[0], ALL[1], OFFSET),
    "grad of grad": lambda f: jax.grad(lambda *a: jax.grad(partial(loss, f), 1)(*a).sum(), BOTH)(*ONE),
    "hessian": lambda f: jax.hessian(partial(loss, f), BOTH)(*ONE),
    "grad of jvp": lambda f: jax.grad(lambda *a: jax.jvp(partial(loss, f), a, ONE)[1], BOTH)(*ONE),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(partial(loss, f)))(*ONE),
    "transposed": lambda f: jax.linear_transpose(lambda x: f(MATRIX, x, jnp.zeros(5))["sum"], X)(COTANGENT),
    "scan": lambda f: jax.lax.scan(lambda x, m: (f(m, x, OFFSET)["sum"][:3], x), X, ALL[0]),
    "grad of scan": lambda f: jax.grad(
        lambda m, x: jax.lax.scan(lambda x, m: (f(m, x, OFFSET)["sum"][:3], None), x, m)[0].sum(), (0, 1)
    )(ALL[0] / 3, X),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(partial(loss, f)), BOTH)(*ONE),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformation(name):
    got, expected = (TRANSFORMATIONS[name](function) for function in (ours, plain))
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_reverse_mode_takes_the_written_transpose_and_forward_mode_the_function_itself():
    CALLS.clear()
    jax.grad(lambda x: ours(MATRIX, x, OFFSET)["sum"].sum())(X)
    assert "transpose" in CALLS and "reference" not in CALLS
    CALLS.clear()
    jax.jvp(lambda x: ours(MATRIX, x, OFFSET), (X,), (X,))
    assert set(CALLS) == {"apply"}
    CALLS.clear()
    jax.jvp(lambda matrix: ours(matrix, X, OFFSET), (MATRIX,), (MATRIX,))
    assert "reference" in CALLS


def test_an_output_nobody_reads_and_an_operand_that_does_not_move():
    """Their cotangents and tangents are symbolic zeros."""
    slopes = jax.grad(lambda x, y: ours(MATRIX, x, y)["twice"].sum(), (0, 1))(X, OFFSET)
    np.testing.assert_allclose(slopes[0], np.zeros(3))
    np.testing.assert_allclose(slopes[1], np.full(5, 2.0))
    _, change = jax.jvp(lambda x: ours(MATRIX, x, OFFSET)["twice"], (X,), (X,))
    assert not np.asarray(change).any()


def test_the_transpose_of_the_transpose_is_the_function():
    def forward(x):
        return ours(MATRIX, x, jnp.zeros(5, np.float32))["sum"]

    backward = jax.linear_transpose(forward, X)
    again = jax.linear_transpose(lambda cotangent: backward(cotangent)[0], COTANGENT)
    np.testing.assert_allclose(again(X)[0], forward(X), rtol=1e-5)


def test_dtypes_are_kept():
    with jax.enable_x64(True):
        arrays = [jnp.asarray(array, jnp.float64) for array in ONE]
        slopes = jax.vmap(jax.grad(partial(loss, ours), BOTH), (None, 0, None))(arrays[0], arrays[1][None], arrays[2])
        assert all(slope.dtype == jnp.float64 for slope in slopes)
