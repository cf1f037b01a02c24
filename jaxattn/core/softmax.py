"""Softmax over the keys that may be attended, with a decided answer for a row that has none."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._typing import EmptyRow
from .index_functions import with_rank


def masked_softmax(
    logits: Float[Array, "*R S"],
    mask: Bool[Array, "..."] | None = None,
    *,
    empty_row: EmptyRow = "zero",
) -> Float[Array, "*R S"]:
    """weights = exp(logits − m) / l over the unmasked keys; m the row maximum, l the row sum.

    A blocked key has weight 0 exactly and no influence on value or gradient, whatever stands there. A logit of −inf
    blocks its key too; NaN makes the weights of all other keys NaN.

    Args:
        logits: scaled logits, any leading axes; at least float32, since the result keeps their dtype.
        mask: True = may attend, broadcastable to `logits`.
        empty_row: the weights of a row with nothing to attend: "zero" 0, "uniform" 1/S, "nan" NaN.

    Reference: Milakov and Gimelshein 2018, section 2, https://arxiv.org/abs/1805.02867 (the safe softmax).
    """
    allowed = None if mask is None else with_rank(mask, logits.ndim)
    unnormalised, _, row_sum = softmax_parts(logits, allowed)
    return softmax_weights(unnormalised, allowed, row_sum, empty_row)


def softmax_parts(
    logits: Float[Array, "*R S"], allowed: Bool[Array, "..."] | None
) -> tuple[Float[Array, "*R S"], Float[Array, "*R"], Float[Array, "*R"]]:
    """(exp(logits − m), 0 where it isn't allowed; m, the row maximum, held constant; l, their sum).

    In a row with nothing to attend l is 0 and m the lowest finite number. No step fills in an infinity or subtracts
    two: what is finite stays so on the way, in derivatives too.

    Args:
        logits: any leading axes.
        allowed: of the rank of the logits; None is everywhere.
    """
    lowest = jnp.finfo(logits.dtype).min
    seen = logits if allowed is None else jnp.where(allowed, logits, lowest)
    row_max = lax.stop_gradient(jnp.max(seen, axis=-1, initial=lowest))
    reference = row_max[..., None]
    if allowed is None:
        unnormalised = _exp_below(logits, reference)
    else:  # both branches of a `where` are differentiated, so exp sees 0 in the place of what is blocked
        unnormalised = jnp.where(allowed, _exp_below(jnp.where(allowed, logits, reference), reference), 0.0)
    return unnormalised, row_max, jnp.sum(unnormalised, axis=-1)


def _exp_below(logits: jax.Array, row_max: jax.Array) -> jax.Array:
    """exp(logits − m), 1 at most: computed twice by the compiler, a huge logit may be rounded to more than m."""
    difference = logits - row_max
    return jnp.exp(difference - lax.stop_gradient(jnp.maximum(difference, 0.0)))


def softmax_weights(
    unnormalised: Float[Array, "*R S"],
    allowed: Bool[Array, "..."] | None,
    row_sum: Float[Array, "*R"],
    empty_row: EmptyRow,
) -> Float[Array, "*R S"]:
    """weights = exp(logits − m) / l, and the policy's in a row with nothing to attend, whose l is 0."""
    empty = (row_sum == 0.0)[..., None]
    weights = unnormalised / jnp.where(empty, 1.0, row_sum[..., None])
    if allowed is not None:  # 0 / NaN is NaN
        weights = jnp.where(allowed, weights, 0.0)
    if empty_row == "zero":
        return weights
    return jnp.where(empty, jnp.nan if empty_row == "nan" else 1.0 / max(unnormalised.shape[-1], 1), weights)


def reference_of(row_max: jax.Array) -> jax.Array:
    """What is subtracted before exp: m, and a finite number in an empty row, since −∞ − (−∞) is not a number."""
    return jnp.maximum(row_max, jnp.finfo(row_max.dtype).min)
