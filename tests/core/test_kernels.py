"""Kernels for other devices, computed here by plain JAX from what they are told."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import masks
from jaxattn.core.cudnn import cudnn_attention
from jaxattn.core.dense import dense_attention
from jaxattn.core.dispatch import splash_kernels
from jaxattn.core.problem import Problem
from jaxattn.core.splash import splash_attention

from ..errors import refuses
from ..inputs import B, K, S, T, generator
from ..tolerances import close

N, WIDTH = 2 * K, 8
LENGTHS = np.array([7, 0, 3])
CAUSAL, WINDOW, PADDING = masks.causal(), masks.sliding_window, masks.padding(LENGTHS)


def draw(batch=(B,), length_q=T, length_kv=S, heads=N, kv_heads=K, width=WIDTH) -> tuple[jax.Array, ...]:
    rng = generator("dispatch")
    shapes = [(length_q, heads, width), (length_kv, kv_heads, width), (length_kv, kv_heads, width)]
    return tuple(jnp.asarray(rng.normal(size=(*batch, *shape)), jnp.float32) for shape in shapes)


def by(implementation, mask=None, **options: Any):
    """Output of q, k, v."""
    return lambda q, k, v: implementation(Problem(q, k, v, 0.3, mask=mask, **options)).output


as_cudnn = partial(cudnn_attention, implementation="xla")
MASKS = {
    "none": None,
    "causal": CAUSAL,
    "window": WINDOW(2, 0),
    "padding": PADDING,
    "one length": masks.padding(3) & CAUSAL,
    "causal, two paddings": CAUSAL & PADDING & masks.padding(np.array([4, 4, 4])),
    "window, padding": WINDOW(1, 4) & PADDING & CAUSAL,
}


def loss(function):
    return lambda *arrays: jnp.sum(jnp.sin(function(*arrays)) ** 2)


def with_gradients(function):
    """Output, dq, dk, dv."""

    def run(*arrays):
        output, pull = jax.vjp(function, *arrays)
        return output, *pull(jnp.sin(output))

    return jax.jit(run)


@pytest.mark.parametrize(
    ("name", "length_q"), [*((name, T) for name in MASKS), ("window", S + 4), ("window, padding", S + 4)]
)
def test_cudnn_is_told_the_same_mask(name, length_q):
    arrays = draw(length_q=length_q)
    ours, theirs = (with_gradients(by(f, MASKS[name], empty_row="uniform")) for f in (as_cudnn, dense_attention))
    for got, expected in zip(ours(*arrays), theirs(*arrays), strict=True):
        assert close(got, expected) and got.dtype == jnp.float32


@pytest.mark.parametrize(("policy", "expected"), [("zero", 0.0), ("nan", np.nan)])
def test_rows_without_a_key(policy, expected):
    """Example 1 has no key; a window of one token before the query leads the last queries of example 2 beyond its 3."""
    output = np.asarray(by(as_cudnn, MASKS["window, padding"], empty_row=policy)(*draw()))
    empty = np.zeros((B, T), bool)
    empty[1], empty[2, 4:] = True, True
    assert np.array_equal(output[empty], np.full_like(output[empty], expected), equal_nan=True)
    assert np.isfinite(output[~empty]).all() and (output[~empty] != 0).all()


def test_cudnn_with_no_and_with_two_batch_axes():
    mask = WINDOW(2, 0) & masks.padding(np.array([[3], [7]]))
    for batch, given in (((), CAUSAL), ((2, 1), mask)):
        arrays = draw(batch=batch)
        assert close(*(jax.jit(by(f, given))(*arrays) for f in (as_cudnn, dense_attention)))


def test_a_kernel_passes_through_the_transformations():
    """Forward mode, second derivatives and vmap, none of which the kernels have themselves."""
    arrays = draw()
    ours, theirs = (by(f, CAUSAL & PADDING) for f in (as_cudnn, dense_attention))
    tangents = tuple(jnp.cos(array) for array in arrays)
    forward = (jax.jit(partial(jax.jvp, f))(arrays, tangents)[1] for f in (ours, theirs))
    assert close(*forward)

    def second(function):
        gradient = jax.grad(loss(function), (0, 2))
        return jax.jit(jax.grad(lambda *given: sum(jnp.sum(g**2) for g in gradient(*given)), 1))(*arrays)

    assert close(second(ours), second(theirs))
    q, k, v = arrays
    single = jax.grad(lambda q, k, v, n: loss(by(as_cudnn, masks.padding(n)))(q, k, v), (0, 1))
    mapped, single = jax.jit(jax.vmap(single, in_axes=(0, None, None, 0))), jax.jit(single)
    for got, expected in zip(mapped(q, k[0], v[0], LENGTHS), single(q[2], k[0], v[0], LENGTHS[2]), strict=True):
        assert close(got[2], expected)


def test_splash_computes_the_same():
    """Its kernels run as plain JAX, at the least lengths they take."""
    arrays = draw(batch=(2,), length_q=128, length_kv=128, heads=2, kv_heads=1, width=64)
    splash = partial(splash_attention, kernels=splash_kernels(), interpret=True)
    options: dict[str, Any] = {"soft_cap": 3.0, "empty_row": "uniform"}
    padded = CAUSAL & masks.padding(np.array([100, 0]))
    ours, theirs = (with_gradients(by(f, padded, **options)) for f in (splash, dense_attention))
    for got, expected in zip(ours(*arrays), theirs(*arrays), strict=True):
        assert close(got, expected)
    ours, theirs = (jax.jit(by(f, WINDOW(60, 3))) for f in (splash, dense_attention))
    assert close(ours(*arrays), theirs(*arrays))


def test_kernels_refuse_masks_that_they_cannot_be_told():
    for implementation in (as_cudnn, partial(splash_attention, kernels=None)):
        with refuses(NotImplementedError, "`mask` must be bounds and lengths here, got `~`"):
            by(implementation, ~CAUSAL)(*draw())
