"""Softmax over the keys that may be attended, with a decided answer for a row that has none."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._typing import EmptyRow


def masked_softmax(
    logits: Float[Array, "*R S"],
    mask: Bool[Array, "..."] | None = None,
    *,
    empty_row: EmptyRow = "zero",
) -> Float[Array, "*R S"]:
    """weights = exp(logits − m) / l over the unmasked keys; m the row maximum, l the row sum.

    A blocked key has weight 0 exactly and no influence on value or gradient, whatever stands there. A logit of −inf
    blocks its key too; NaN propagates.

    Args:
        logits: scaled logits, any leading axes; at least float32, since the result keeps their dtype.
        mask: True = may attend, broadcastable to `logits`.
        empty_row: the weights of a row with nothing to attend: "zero" 0, "uniform" 1/S, "nan" NaN.

    Reference: Milakov and Gimelshein 2018, section 2, https://arxiv.org/abs/1805.02867 (the safe softmax).
    """
    if logits.shape[-1] == 0:
        return logits
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    row_max = jnp.max(logits, axis=-1, keepdims=True)
    empty = row_max == -jnp.inf
    # Both branches of a `where` are differentiated, so an empty row gets harmless logits before exp sees them.
    logits = jnp.where(empty, 0.0, logits)
    row_max = lax.stop_gradient(jnp.where(empty, 0.0, row_max))
    unnormalised = jnp.exp(logits - row_max)
    weights = unnormalised / jnp.sum(unnormalised, axis=-1, keepdims=True)
    if empty_row == "uniform":
        return weights
    return jnp.where(empty, 0.0 if empty_row == "zero" else jnp.nan, weights)
