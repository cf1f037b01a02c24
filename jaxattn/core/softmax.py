"""Softmax over the keys that may be attended, with a decided answer for a row that has none."""

import jax
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
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    return softmax_weights(logits, *softmax_statistics(logits), empty_row)


def softmax_statistics(logits: Float[Array, "*R S"]) -> tuple[Float[Array, "*R"], Float[Array, "*R"]]:
    """m, the row maximum, held constant, and l = Σ exp(logits − m); −∞ and 0 in an empty row."""
    row_max = lax.stop_gradient(jnp.max(logits, axis=-1, initial=-jnp.inf))
    return row_max, softmax_sum(logits, row_max)


def softmax_sum(logits: Float[Array, "*R S"], row_max: Float[Array, "*R"]) -> Float[Array, "*R"]:
    """l = Σ exp(logits − m); 0 where m = −∞."""
    unnormalised = jnp.exp(_harmless(logits, row_max) - reference_of(row_max)[..., None])
    return jnp.where(row_max == -jnp.inf, 0.0, jnp.sum(unnormalised, axis=-1))


def softmax_weights(
    logits: Float[Array, "*R S"], row_max: Float[Array, "*R"], row_sum: Float[Array, "*R"], empty_row: EmptyRow
) -> Float[Array, "*R S"]:
    """weights = exp(logits − m) / l, and the policy's in a row with nothing to attend, whose l is 0."""
    empty = (row_sum == 0.0)[..., None]
    unnormalised = jnp.exp(_harmless(logits, row_max) - reference_of(row_max)[..., None])
    weights = unnormalised / jnp.where(empty, 1.0, row_sum[..., None])
    policy = {"zero": 0.0, "uniform": 1.0 / max(logits.shape[-1], 1), "nan": jnp.nan}[empty_row]
    return jnp.where(empty, policy, weights)


def reference_of(row_max: jax.Array) -> jax.Array:
    """What is subtracted before exp: m, and a finite number in an empty row, since −∞ − (−∞) is not a number."""
    return jnp.maximum(row_max, jnp.finfo(row_max.dtype).min)


def _harmless(logits: jax.Array, row_max: jax.Array) -> jax.Array:
    """Both branches of a `where` are differentiated, so an empty row gets harmless logits before exp sees them."""
    return jnp.where((row_max == -jnp.inf)[..., None], 0.0, logits)
