"""softmax(q kᵀ · scale + bias) v: the public operation and its reference implementation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._checks import (
    check_attention,
    check_broadcasts,
    check_choice,
    check_floating,
    check_mask_dtype,
    check_rate,
)
from .._typing import ArrayLike, EmptyRow, Keys, Logits, Precision, Queries, Values
from .dropout import dropout
from .record import record, recording
from .softmax import masked_softmax


class AttentionOutput(NamedTuple):
    """What attention returns; unpacks as `output, weights`, the weights None where nobody asked for them."""

    output: jax.Array
    weights: Any


def attention_logits(
    q: Queries, k: Keys, *, scale: float, soft_cap: float | None = None, precision: Precision = None
) -> Logits:
    """logits = q kᵀ · scale, in float32 at least, then c · tanh(logits / c) for a soft cap c; head n reads n // G."""
    *batch, length_q, num_heads, width = q.shape
    kv_heads = k.shape[-2]
    grouped = q.reshape(*batch, length_q, kv_heads, num_heads // kv_heads, width)
    dtype = jnp.promote_types(jnp.result_type(q, k), jnp.float32)
    logits = jnp.einsum("...tkgh,...skh->...kgts", grouped, k, precision=precision, preferred_element_type=dtype)
    logits = logits.reshape(*batch, num_heads, length_q, k.shape[-3]) * scale  # *B N T S
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


def weighted_values(weights: Logits, v: Values, *, precision: Precision = None) -> jax.Array:
    """output[..., t, n, :] = Σₛ weights[..., n, t, s] · v[..., s, n // G, :], accumulated in float32 at least."""
    *batch, num_heads, length_q, length_kv = weights.shape
    kv_heads = v.shape[-2]
    grouped = weights.reshape(*batch, kv_heads, num_heads // kv_heads, length_q, length_kv)
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    output = jnp.einsum("...kgts,...skv->...tkgv", grouped, v, precision=precision, preferred_element_type=dtype)
    return output.reshape(*batch, length_q, num_heads, v.shape[-1])  # *B T N V


def dot_product_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    dropout_mask: ArrayLike | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
    precision: Precision = None,
) -> AttentionOutput:
    """output = dropout(softmax(q kᵀ · scale + bias, where mask)) v.

    K = N is multi-head, 1 < K < N grouped-query, K = 1 multi-query attention: query head n reads kv head n // (N/K).

    Args:
        q: queries [*B, T, N, H]; any leading batch axes, none included.
        k: keys [*B, S, K, H].
        v: values [*B, S, K, V].
        mask: boolean, True = may attend, broadcastable from the right to [*B, N, T, S].
        bias: floating, added to the logits, broadcastable likewise; −inf blocks.
        scale: factor of the logits; None is 1/√H.
        soft_cap: c bounds the scaled logits to (−c, c) by c · tanh(logits / c), before bias and mask.
        empty_row: weights of a query with nothing to attend: "zero" 0, "uniform" 1/S, "nan" NaN.
        dropout_rate: share of the weights that is dropped, in [0, 1); needs `dropout_rng` or `dropout_mask`.
        dropout_rng: JAX key that draws which weights are dropped, each element by itself.
        dropout_mask: the weights that are kept (True), instead of drawing them; broadcastable to the weights.
        return_weights: also give the weights [*B, N, T, S], after softmax and before dropout.
        implementation: "dense", the reference, or "auto", which picks one.
        precision: of the matrix products, as `jax.lax.dot_general` takes it.

    Returns:
        AttentionOutput(output [*B, T, N, V], weights or None), both in q's dtype; softmax and sums run in float32 at
        least.

    Raises:
        ValueError: shapes that do not fit, an unknown `empty_row` or `implementation`, a rate outside [0, 1), a rate
            without randomness.
        TypeError: a mask that is not boolean, arrays that are not floating.

    Reference: Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762; grouped heads: Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245; soft cap: Gemma 2, https://arxiv.org/abs/2408.00118.
    """
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    check_attention(q, k, v)
    check_choice("empty_row", empty_row, ("zero", "uniform", "nan"))
    check_choice("implementation", implementation, ("auto", "dense"))
    check_rate("dropout_rate", dropout_rate)
    logits_shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    if mask is not None:
        mask = jnp.asarray(mask)
        check_mask_dtype(mask)
        check_broadcasts("mask", mask, logits_shape)
    if bias is not None:
        bias = jnp.asarray(bias)
        check_floating("bias", bias)
        check_broadcasts("bias", bias, logits_shape)
    if dropout_mask is not None:
        dropout_mask = jnp.asarray(dropout_mask)
        check_mask_dtype(dropout_mask)
        check_broadcasts("dropout_mask", dropout_mask, logits_shape)
    if dropout_rate > 0.0 and dropout_rng is None and dropout_mask is None:
        raise ValueError(
            f"`dropout_rate` needs `dropout_rng` or `dropout_mask`, got dropout_rate={dropout_rate} alone."
        )
    factor = q.shape[-1] ** -0.5 if scale is None else scale

    logits = attention_logits(q, k, scale=factor, soft_cap=soft_cap, precision=precision)
    biased = logits if bias is None else logits + bias.astype(logits.dtype)
    weights = masked_softmax(biased, mask, empty_row=empty_row)
    dropped = dropout(weights, dropout_rate, rng=dropout_rng, keep_mask=dropout_mask)
    output = weighted_values(dropped.astype(v.dtype), v, precision=precision).astype(q.dtype)
    weights = weights.astype(q.dtype)
    if recording():
        for name, value in (("q", q), ("k", k), ("v", v), ("logits", logits), ("weights", weights)):
            record(name, value)
    return AttentionOutput(output, weights if return_weights else None)
