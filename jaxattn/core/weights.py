"""Attention weights after a pass that did not keep them.

weights = exp(logits − m) / l with the kept row maximum m. l is summed again from these very logits: they are rounded
otherwise than those of the pass, and with its l the error of weights near 1 was 7 times torch's.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from .dense import masked_logits
from .index_functions import Span, window
from .problem import Problem
from .softmax import softmax_sum, softmax_weights


def all_weights(problem: Problem, row_max: jax.Array) -> jax.Array:
    """All of them: [*B, N, T, S]."""
    return _weights(masked_logits(problem), row_max, problem)


def chosen_weights(problem: Problem, row_max: jax.Array, heads: jax.Array, rows: jax.Array) -> jax.Array:
    """[*B, heads, rows, S]: the weights of some heads and queries, at the cost of those alone."""
    examples, group = math.prod(problem.batch), problem.num_heads // problem.kv_heads
    keys = Span(0, problem.length_kv)
    mask = None if problem.mask is None else problem.mask.flatten_batch(problem.batch)
    bias = None if problem.bias is None else problem.flatten(problem.bias)

    def one(b: Any, q: jax.Array, k: jax.Array, head: jax.Array, row: jax.Array) -> jax.Array:
        """The logits of one query of one head: q [H], k [S, H] → [S]."""
        n, i = Span(head, 1), Span(row, 1)
        product = jnp.matmul(k, q, precision=problem.precision, preferred_element_type=problem.dtype) * problem.scale
        cap = problem.soft_cap
        logits = (product if cap is None else cap * jnp.tanh(product / cap))[None, None]
        if problem.score_mod is not None:
            logits = problem.score_mod.apply(logits, b, n, i, keys)
        if bias is not None:
            logits = logits + window(bias, b, n, i, keys).astype(logits.dtype)
        if mask is not None:
            logits = jnp.where(mask.at(b).block(n, i, keys), logits, -jnp.inf)
        return logits[0, 0]

    def example(b: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
        over_rows = jax.vmap(one, in_axes=(None, 0, None, None, 0))
        over_both = jax.vmap(over_rows, in_axes=(None, 0, 0, 0, None))
        return over_both(b, jnp.swapaxes(q[rows][:, heads], 0, 1), jnp.swapaxes(k, 0, 1)[heads // group], heads, rows)

    q, k = (array.reshape(examples, *array.shape[-3:]) for array in (problem.q, problem.k))
    logits = jax.vmap(example)(jnp.arange(examples), q, k)
    logits = logits.reshape(*problem.batch, *logits.shape[1:])
    return _weights(logits, row_max[..., heads, :][..., rows], problem)


def _weights(logits: jax.Array, row_max: jax.Array, problem: Problem) -> jax.Array:
    return softmax_weights(logits, row_max, softmax_sum(logits, row_max), problem.empty_row)
