"""The reference implementation: all logits at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._typing import Keys, Logits, Precision, Queries, Values
from .dropout import draw_attention_keep_mask, dropout
from .index_functions import Span
from .problem import Problem, Result
from .softmax import softmax_statistics, softmax_weights


def dense_attention(problem: Problem, *, products: Callable | None = None, values: Callable | None = None) -> Result:
    """output = dropout(softmax(logits)) v, with autodiff's derivatives and memory for all T·S logits.

    Args:
        problem: the call.
        products: computes q kᵀ; None is attention_products.
        values: computes the weighted sums of v; None is weighted_values.
    """
    logits = masked_logits(problem, products=products)
    row_max, row_sum = softmax_statistics(logits)
    weights = softmax_weights(logits, row_max, row_sum, problem.empty_row)
    kept = weights
    if problem.drops:
        keep = problem.dropout_mask
        if keep is None:
            keep = draw_attention_keep_mask(problem.dropout_rng, problem.dropout_rate, problem.logits_shape)
        kept = dropout(weights, problem.dropout_rate, keep_mask=keep)
    output = (values or weighted_values)(kept.astype(problem.v.dtype), problem.v, precision=problem.precision)
    if problem.length_kv == 0 and problem.empty_row == "nan":
        output = jnp.full_like(output, jnp.nan)
    return Result(output.astype(problem.q.dtype), row_max, row_sum, weights)


def attention_products(q: Queries, k: Keys, *, precision: Precision = None) -> Logits:
    """q kᵀ [*B, N, T, S], in float32 at least; head n reads n // G."""
    *batch, length_q, num_heads, width = q.shape
    length_kv, kv_heads = k.shape[-3:-1]
    dtype = jnp.promote_types(jnp.result_type(q, k), jnp.float32)
    grouped = jnp.moveaxis(q, -3, -2).reshape(*batch, kv_heads, num_heads // kv_heads * length_q, width)  # *B K GT H
    columns = jnp.moveaxis(k, -3, -1)  # *B K H S
    products = jnp.matmul(grouped, columns, precision=precision, preferred_element_type=dtype)
    return products.reshape(*batch, num_heads, length_q, length_kv)  # *B N T S


def attention_logits(problem: Problem, *, products: Callable | None = None) -> Logits:
    """logits = q kᵀ · scale, in float32 at least, then c · tanh(logits / c) for a soft cap c."""
    logits = (products or attention_products)(problem.q, problem.k, precision=problem.precision) * problem.scale
    cap = problem.soft_cap
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def weighted_values(weights: Logits, v: Values, *, precision: Precision = None) -> jax.Array:
    """output[..., t, n, :] = Σₛ weights[..., n, t, s] · v[..., s, n // G, :], accumulated in float32 at least."""
    *batch, num_heads, length_q, length_kv = weights.shape
    kv_heads, width = v.shape[-2:]
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    grouped = weights.reshape(*batch, kv_heads, num_heads // kv_heads * length_q, length_kv)
    output = jnp.matmul(grouped, jnp.moveaxis(v, -3, -2), precision=precision, preferred_element_type=dtype)
    return jnp.moveaxis(output.reshape(*batch, num_heads, length_q, width), -3, -2)  # *B T N V


def masked_logits(problem: Problem, *, products: Callable | None = None) -> Logits:
    """The logits after soft cap, score function and bias, −∞ where the mask blocks."""
    shape = problem.logits_shape
    logits = attention_logits(problem, products=products)
    if problem.score_mod is not None:
        modify, (n, i, j) = problem.score_mod.apply, (Span(0, size) for size in shape[-3:])
        examples = logits.reshape(-1, *shape[-3:])
        logits = jax.vmap(lambda one, b: modify(one, b, n, i, j))(examples, jnp.arange(len(examples))).reshape(shape)
    if problem.bias is not None:
        logits = logits + problem.bias.astype(logits.dtype)
    if problem.mask is not None:
        allowed = problem.mask.to_array(*shape[-2:], batch=problem.batch, num_heads=problem.num_heads)
        logits = jnp.where(allowed, logits, -jnp.inf)
    return logits
