"""JAX's transformations of the blockwise implementation, each against the same one of the dense."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads

from jaxattn import dot_product_attention
from jaxattn.core import masks
from jaxattn.core.schedule import Schedule
from jaxattn.parity.quick import quickly

from ..inputs import generator
from .drawing import difference

B, T, S, N, K, H, V = 3, 5, 7, 2, 1, 3, 2
TOLERANCE = 1e-11
RNG = generator("transformations")
EXAMPLE = {
    "q": RNG.normal(size=(T, N, H)),
    "k": RNG.normal(size=(S, K, H)),
    "v": RNG.normal(size=(S, K, V)),
    "bias": np.where(RNG.random((N, T, S)) < 0.1, -np.inf, RNG.normal(size=(N, T, S))),
    "table": RNG.normal(size=T + S),
}
BATCH = {name: np.stack([array, 1.1 * array[::-1], -array]) for name, array in EXAMPLE.items() if name != "bias"}
BATCH["bias"] = np.stack([EXAMPLE["bias"][:, ::-1], EXAMPLE["bias"], EXAMPLE["bias"][::-1]])
LENGTHS = np.array([4, 0, S])
CHANGE = {name: np.cos(np.nan_to_num(array, neginf=0.0)) for name, array in EXAMPLE.items()}
SMOOTH = ("q", "k", "v", "table")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks in each direction at these sizes, neither dividing its length."""
    sizes = (Schedule(1, 3, 4, 0), Schedule(1, 2, 3, 0))
    monkeypatch.setattr("jaxattn.core.blockwise.schedules", lambda problem: sizes)


def by_table(logit, b, n, i, j, table):
    return logit * (1 + 0.1 * table[i]) + table[i + j]


def attend(implementation, inputs, length=5) -> jax.Array:
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    mask = masks.padding(jnp.asarray(length)) & masks.causal(2)
    return dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        bias=inputs["bias"],
        score_mod=(by_table, (jnp.cos(inputs["table"]),)),
        implementation=implementation,
    ).output


def loss(implementation, inputs, length=5) -> jax.Array:
    return jnp.sum(jnp.sin(attend(implementation, inputs, length)))


def flat(function):
    """A function of one vector, made of those inputs that may move."""
    start, restore = ravel_pytree({name: EXAMPLE[name] for name in SMOOTH})
    return lambda vector: function({**EXAMPLE, **restore(vector)}), start


def over_some(function, axes):
    return jax.vmap(lambda inputs: function(inputs), in_axes=({name: axes.get(name) for name in EXAMPLE},))


def mixed(names):
    return {name: BATCH[name] if name in names else EXAMPLE[name] for name in EXAMPLE}


def linearized(one, scalar):
    del scalar
    value, change = jax.linearize(one, EXAMPLE)
    return value, change(CHANGE), jax.linear_transpose(change, EXAMPLE)(value)


def steps(one, scalar):
    """Gradient descent, its steps in a scan."""

    def step(inputs, length):
        value, slope = jax.value_and_grad(scalar)(inputs, length)
        return {name: inputs[name] - 0.1 * slope[name] for name in inputs}, value

    return jax.lax.scan(step, EXAMPLE, LENGTHS)


def checkpointed(one, scalar):
    del one
    return jax.grad(jax.checkpoint(scalar))(EXAMPLE)


def jvp_of(function):
    return jax.jvp(function, (EXAMPLE,), (CHANGE,))


def inner_product(a, b):
    return sum(jnp.vdot(a[name], b[name]) for name in SMOOTH)


def grad_of_grad(one, scalar):
    del one
    return jax.grad(lambda inputs: inner_product(jax.grad(scalar)(inputs), CHANGE))(EXAMPLE)


def grad_of_jvp(one, scalar):
    del one
    return jax.grad(lambda inputs: jax.jvp(scalar, (inputs,), (CHANGE,))[1])(EXAMPLE)


TRANSFORMATIONS = {
    "vmap": lambda one, scalar: jax.vmap(one)(BATCH, LENGTHS),
    "vmap, keys and values shared": lambda one, scalar: over_some(one, {"q": 0})(mixed("q")),
    "vmap of grad": lambda one, scalar: jax.vmap(jax.grad(scalar))(BATCH, LENGTHS),
    "vmap of grad, shared": lambda one, scalar: over_some(jax.grad(scalar), {"q": 0, "bias": 0})(mixed(("q", "bias"))),
    "vmap of grad, only the score's arrays": lambda one, scalar: over_some(jax.grad(scalar), {"table": 0})(
        mixed("table")
    ),
    "vmap of grad, lengths": lambda one, scalar: jax.vmap(jax.grad(scalar), in_axes=(None, 0))(EXAMPLE, LENGTHS),
    "grad of vmap": lambda one, scalar: jax.grad(lambda batch: jax.vmap(scalar)(batch, LENGTHS).sum())(BATCH),
    "jvp": lambda one, scalar: jvp_of(one),
    "linearize": linearized,
    "scan": steps,
    "checkpoint": checkpointed,
    "jvp of grad": lambda one, scalar: jvp_of(jax.grad(scalar)),
    "grad of grad": grad_of_grad,
    "grad of jvp": grad_of_jvp,
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformation(name):
    transformation = TRANSFORMATIONS[name]
    with jax.enable_x64(True):
        ours, expected = (
            quickly(partial(transformation, partial(attend, name), partial(loss, name)))()
            for name in ("blockwise", "dense")
        )
        leaves = jax.tree.leaves(expected)
        assert all(np.isfinite(np.asarray(leaf)).all() or leaf.shape == EXAMPLE["bias"].shape for leaf in leaves)
        assert difference(ours, expected) <= TOLERANCE


@pytest.mark.parametrize(
    "transformation", [jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f))], ids=["jacfwd of jacrev", "jacrev of jacfwd"]
)
def test_all_second_derivatives_of_a_tiny_problem(transformation):
    start = jnp.asarray(generator("tiny").normal(size=(2, 3, 1, 2)))

    def function(implementation, start):
        return jnp.sum(
            dot_product_attention(start[0], start[1], jnp.cos(start[0]), implementation=implementation)[0] ** 2
        )

    with jax.enable_x64(True):
        start = start.astype(jnp.float64)
        ours, expected = (quickly(transformation(partial(function, name)))(start) for name in ("blockwise", "dense"))
        assert difference(ours, expected) <= TOLERANCE


def test_eager_calls_are_those_of_jit():
    with jax.enable_x64(True):
        assert difference(attend("blockwise", EXAMPLE), quickly(partial(attend, "dense"))(EXAMPLE)) <= TOLERANCE


def test_first_derivatives_are_those_of_differences():
    with jax.enable_x64(True):
        function, start = flat(partial(loss, "blockwise"))
        check_grads(jax.jit(function), (start,), order=1, atol=1e-7, rtol=1e-7)
