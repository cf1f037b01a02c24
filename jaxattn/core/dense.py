"""The reference implementation: all logits at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._typing import Keys, Logits, Precision, Queries, Values
from .dropout import draw_attention_keep_mask, dropout
from .dtypes import at_least_float32
from .index_functions import Span, with_rank
from .problem import Problem, Result
from .softmax import softmax_parts, softmax_weights
from .weighted import logits_product, weighted_sum


def dense_attention(problem: Problem, *, products: Callable | None = None, values: Callable | None = None) -> Result:
    """output = dropout(softmax(logits)) v, with autodiff's derivatives and memory for all T·S logits.

    Args:
        problem: the call.
        products: computes q kᵀ; None is attention_products.
        values: computes the weighted sums of v; None is weighted_values.
    """
    logits, allowed = logits_and_mask(problem, products=products)
    unnormalised, row_max, row_sum = softmax_parts(logits, allowed)
    weights = softmax_weights(unnormalised, allowed, row_sum, problem.empty_row)
    kept = weights
    if problem.drops:
        keep = problem.dropout_mask
        if keep is None:
            keep = draw_attention_keep_mask(problem.dropout_rng, problem.dropout_rate, problem.logits_shape)
        kept = dropout(weights, problem.dropout_rate, keep_mask=keep)
    output = weighted_sum(values or weighted_values, problem.precision, kept.astype(problem.v.dtype), problem.v)
    if problem.length_kv == 0 and problem.empty_row == "nan":
        output = jnp.full_like(output, jnp.nan)
    return Result(output.astype(problem.q.dtype), row_max, row_sum, weights)


def attention_products(q: Queries, k: Keys, *, precision: Precision = None) -> Logits:
    """q kᵀ [*B, N, T, S], in float32 at least; head n reads n // G."""
    *batch, length_q, num_heads, width = q.shape
    length_kv, kv_heads = k.shape[-3:-1]
    dtype = at_least_float32(q, k)
    grouped = jnp.moveaxis(q, -3, -2).reshape(*batch, kv_heads, num_heads // kv_heads * length_q, width)  # *B K GT H
    columns = jnp.moveaxis(k, -3, -1)  # *B K H S
    products = jnp.matmul(grouped, columns, precision=precision, preferred_element_type=dtype)
    return products.reshape(*batch, num_heads, length_q, length_kv)  # *B N T S


def attention_logits(problem: Problem, *, products: Callable | None = None) -> Logits:
    """logits = q kᵀ · scale, in float32 at least, then c · tanh(logits / c) for a soft cap c."""
    exact = None if products is None else attention_products
    queries, scale = scaled_queries(problem)
    logits = logits_product(products or attention_products, exact, problem.precision, queries, problem.k)
    logits = logits if scale is None else logits * scale
    cap = problem.soft_cap
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def scaled_queries(problem: Problem) -> tuple[jax.Array, jax.Array | None]:
    """(queries, the scale of the logits): the queries scaled and None, if they are as wide as the logits.

    The compiler joins logits · scale − m, rounding once: at 1e10 the greatest logit then exceeds m by up to 512.
    """
    scale = jnp.asarray(problem.scale, problem.dtype)
    return (problem.q * scale, None) if problem.q.dtype == problem.dtype else (problem.q, scale)


def weighted_values(weights: Logits, v: Values, *, precision: Precision = None) -> jax.Array:
    """output[..., t, n, :] = Σₛ weights[..., n, t, s] · v[..., s, n // G, :], accumulated in float32 at least."""
    *batch, num_heads, length_q, length_kv = weights.shape
    kv_heads, width = v.shape[-2:]
    dtype = at_least_float32(v)
    grouped = weights.reshape(*batch, kv_heads, num_heads // kv_heads * length_q, length_kv)
    output = jnp.matmul(grouped, jnp.moveaxis(v, -3, -2), precision=precision, preferred_element_type=dtype)
    return jnp.moveaxis(output.reshape(*batch, num_heads, length_q, width), -3, -2)  # *B T N V


def logits_and_mask(problem: Problem, *, products: Callable | None = None) -> tuple[Logits, Bool[Array, "..."] | None]:
    """The logits after soft cap, score function and bias; and who may attend, of the same rank, None for everybody."""
    shape = problem.logits_shape
    logits = attention_logits(problem, products=products)
    if problem.score_mod is not None:
        modify, (n, i, j) = problem.score_mod.apply, (Span(0, size) for size in shape[-3:])
        examples = logits.reshape(-1, *shape[-3:])
        b = jnp.arange(examples.shape[0], dtype=jnp.int32)
        logits = jax.vmap(lambda one, b: modify(one, b, n, i, j))(examples, b).reshape(shape)
    if problem.bias is not None:
        logits = logits + with_rank(problem.bias, logits.ndim).astype(logits.dtype)
    allowed = None
    if problem.bias is not None or problem.score_mod is not None:
        allowed = logits != -jnp.inf
    if problem.mask is not None:
        by_mask = problem.mask.to_array(*shape[-2:], batch=problem.batch, num_heads=problem.num_heads)
        by_mask = with_rank(by_mask, logits.ndim)
        allowed = by_mask if allowed is None else allowed & by_mask
    return logits, allowed
