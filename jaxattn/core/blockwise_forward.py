"""Attention in blocks of the logits: memory for O(T + S) beside inputs and results, and blocked keys left out."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .block import Fixed, Plan, Smooth, head_of, put_rows, rows
from .blockwise_derivatives import Residuals, Tangent, by_rows
from .index_functions import Span
from .linear import linear_call
from .meshes import varying_like
from .schedule import over_heads, over_keys, over_queries
from .softmax import reference_of
from .weighted import replaced_if

Statistics = tuple[jax.Array, jax.Array, jax.Array]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def attend(plan: Plan, smooth: Smooth, fixed: Fixed) -> Statistics:
    """(output [X, G, T, V], m [X, G, T], l [X, G, T]): output = Σⱼ exp(Lⱼ − m) keepⱼ vⱼ / l, l = Σⱼ exp(Lⱼ − m).

    A row with nothing to attend has output 0, the lowest finite m, l = 0. m is a point of reference: its derivative is
    0, and that of l is taken at fixed m, so every quantity that does not depend on the choice of m has its right
    derivative.

    Rows that aren't finite are computed again by plain operations: of what is blocked, blocks skip some and multiply
    some by 0, and the result must not depend on which.

    Reference: Rabe and Staats 2021, https://arxiv.org/abs/2112.05682; Dao et al. 2022, FlashAttention, algorithm 1,
    https://arxiv.org/abs/2205.14135.
    """
    found = _forward(plan, smooth, fixed)
    finite = jnp.all(jnp.isfinite(found[0]), axis=-1, keepdims=True)

    def exact() -> Statistics:
        output, row_max, row_sum = by_rows(plan, fixed, smooth)
        known = finite[..., 0]
        statistics = jnp.where(known, found[1], row_max), jnp.where(known, found[2], row_sum)
        return jnp.where(finite, found[0], output), *statistics

    return replaced_if(~jnp.all(finite), found, exact)


@attend.defjvp
def _tangent(plan: Plan, primals: Any, tangents: Any) -> tuple[Statistics, Statistics]:
    smooth, fixed = primals
    output, row_max, row_sum = attend(plan, smooth, fixed)
    residuals = Residuals(smooth, fixed, output, row_max, row_sum)
    d_output, d_sum = linear_call(Tangent(plan), residuals, tangents[0])
    return (output, row_max, row_sum), (d_output, jnp.zeros_like(row_max), d_sum)


def _forward(plan: Plan, smooth: Smooth, fixed: Fixed) -> Statistics:
    count, group, length_q, _ = smooth.q.shape
    length_kv, width_v = smooth.v.shape[-2:]
    dtype = smooth.q.dtype

    def one_head(carry, inputs):
        x, q, k, v = inputs
        head = head_of(plan, fixed, x)
        q = q.reshape(group, length_q, -1)
        # Products of many heads at once want a right operand that is transposed in memory, those of one do not.
        k_t = k.T if plan.forward.heads == 1 else lax.optimization_barrier(k.T)
        empty = (jnp.zeros((group, length_q, width_v), dtype), *(jnp.zeros((group, length_q), dtype),) * 2)
        empty = varying_like(empty, smooth.q)

        def one_block(results, i, first):
            del first  # what overlaps is computed twice, to the same values
            size = group * i.size
            nothing = (jnp.full((size, 1), -jnp.inf, dtype), *(jnp.zeros((size, n), dtype) for n in (1, width_v)))
            nothing = varying_like(nothing, smooth.q)
            step = partial(_step, head, smooth, rows(q, i), k_t, v, length_q, i)
            row_max, row_sum, output = over_keys(plan.forward, head.mask, i, length_kv, nothing, step)
            divisor = row_sum if head.never_empty(smooth, i, length_kv) else jnp.where(row_sum == 0.0, 1.0, row_sum)
            found = (output / divisor, reference_of(row_max)[:, 0], row_sum[:, 0])
            return tuple(put_rows(result, block, i) for result, block in zip(results, found, strict=True))

        return carry, over_queries(plan.forward, head.mask, length_q, empty, one_block)

    # One axis for a head's rows: XLA would copy queries twice to settle the layout of an axis of size 1.
    queries = smooth.q.reshape(count, group * length_q, -1)
    return over_heads(one_head, (), (jnp.arange(count), queries, smooth.k, smooth.v), plan.forward.heads)[1]


def _step(head, smooth, q, k_t, v, length_q, i: Span, state, j: Span, first_key, masked):
    """m, l and the sum of the values, with the keys j added to them; `state` is None if there were none before."""
    precision, shape = head.plan.precision, (head.plan.group, i.size, j.size)
    logits = jnp.matmul(q, _keys(k_t, j, 1), precision=precision)
    allowed = head.allowed(i, j, first_key, masked)
    if not head.is_plain(smooth):
        logits = head.logits(logits.reshape(shape), head.bias(smooth, i, j), smooth.score, i, j).reshape(logits.shape)
    if allowed is not None:
        logits = head.blocked(logits.reshape(shape), allowed, head.is_plain(smooth)).reshape(logits.shape)
    row_max = jnp.max(logits, axis=-1, keepdims=True)
    if state is not None:
        row_max = jnp.maximum(state[0], row_max)
    # XLA makes one loop of products, maximum, exponential and sum if nothing that it can't fuse stands between them.
    fused = state is None and head.never_empty(smooth, i, v.shape[0])
    reference = row_max if fused else reference_of(row_max)
    unnormalised = jnp.exp(logits - reference)
    row_sum = jnp.sum(unnormalised, axis=-1, keepdims=True)
    kept = head.kept(length_q, i, j)
    if kept is not None:
        unnormalised = (unnormalised.reshape(shape) * kept).reshape(logits.shape)
    output = jnp.matmul(unnormalised, _keys(v, j, 0), precision=precision)
    if state is None:
        return row_max, row_sum, output
    shrink = jnp.exp(state[0] - reference)
    return row_max, state[1] * shrink + row_sum, state[2] * shrink + output


def _keys(array: jax.Array, j: Span, axis: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, j.start, j.size, axis)
