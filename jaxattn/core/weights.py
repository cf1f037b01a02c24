"""Attention weights after a pass that did not keep them.

weights = exp(logits − m) / l, where m and l are found again from these very logits: they are rounded otherwise than
those of the pass. With its l the error of weights near 1 was 7 times torch's; with its m logits of 1e10 overflow.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from .dense import logits_and_mask, scaled_queries
from .dtypes import at_least_float32
from .index_functions import Span, window
from .problem import Problem
from .softmax import softmax_parts, softmax_weights
from .weighted import logits_product


def all_weights(problem: Problem) -> jax.Array:
    """All of them: [*B, N, T, S]."""
    return _weights(*logits_and_mask(problem), problem)


def chosen_weights(problem: Problem, heads: jax.Array, rows: jax.Array) -> jax.Array:
    """[*B, heads, rows, S]: the weights of some heads and queries, at the cost of those alone."""
    examples, group = math.prod(problem.batch), problem.num_heads // problem.kv_heads
    keys = Span(0, problem.length_kv)
    mask = None if problem.mask is None else problem.mask.flatten_batch(problem.batch)
    bias = None if problem.bias is None else problem.flatten(problem.bias)

    scaled, scale = scaled_queries(problem)

    def one(b: Any, q: jax.Array, k: jax.Array, head: jax.Array, row: jax.Array) -> Any:
        """The logits of one query of one head, and which keys it may attend to: q [H], k [S, H] → [S]."""
        n, i = Span(head, 1), Span(row, 1)
        products = logits_product(_one_query, None, problem.precision, q, k)
        products = products if scale is None else products * scale
        cap = problem.soft_cap
        logits = (products if cap is None else cap * jnp.tanh(products / cap))[None, None]
        if problem.score_mod is not None:
            logits = problem.score_mod.apply(logits, b, n, i, keys)
        if bias is not None:
            logits = logits + window(bias, b, n, i, keys).astype(logits.dtype)
        if mask is None:
            return logits[0, 0], None
        return logits[0, 0], jnp.broadcast_to(mask.at(b).block(n, i, keys), logits.shape)[0, 0]

    def example(b: jax.Array, q: jax.Array, k: jax.Array) -> Any:
        over_rows = jax.vmap(one, in_axes=(None, 0, None, None, 0))
        over_both = jax.vmap(over_rows, in_axes=(None, 0, 0, 0, None))
        return over_both(b, jnp.swapaxes(q[rows][:, heads], 0, 1), jnp.swapaxes(k, 0, 1)[heads // group], heads, rows)

    q, k = (array.reshape(examples, *array.shape[-3:]) for array in (scaled, problem.k))
    found = jax.vmap(example)(jnp.arange(examples, dtype=jnp.int32), q, k)
    logits, allowed = jax.tree.map(lambda part: part.reshape(*problem.batch, *part.shape[1:]), found)
    return _weights(logits, allowed, problem)


def _one_query(q: jax.Array, k: jax.Array, *, precision: Any) -> jax.Array:
    return jnp.matmul(k, q, precision=precision, preferred_element_type=at_least_float32(q, k))


def _weights(logits: jax.Array, allowed: jax.Array | None, problem: Problem) -> jax.Array:
    unnormalised, _, row_sum = softmax_parts(logits, allowed)
    return softmax_weights(unnormalised, allowed, row_sum, problem.empty_row)
