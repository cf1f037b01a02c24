"""Dropout with inverted scaling, its randomness a key or a keep mask given by the caller."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_rate


def draw_keep_mask(rng: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Boolean, True with probability 1 − rate, each element by itself."""
    return jax.random.bernoulli(rng, 1.0 - rate, shape)


def dropout(
    inputs: Float[Array, "..."],
    rate: float,
    *,
    rng: jax.Array | None = None,
    keep_mask: jax.Array | None = None,
) -> Float[Array, "..."]:
    """outputs = inputs · keep / (1 − rate), keep ~ Bernoulli(1 − rate) per element.

    Args:
        inputs: any shape.
        rate: the share that is dropped, in [0, 1).
        rng: a JAX key that draws the keep mask; None with no `keep_mask` means no dropout.
        keep_mask: True = kept, broadcastable to `inputs`, instead of a drawn one: how training mode is checked.

    Raises:
        ValueError: a rate outside [0, 1).
    """
    check_rate("dropout_rate", rate)
    if keep_mask is None:
        if rng is None or rate == 0.0:
            return inputs
        keep_mask = draw_keep_mask(rng, rate, inputs.shape)
    return jnp.where(keep_mask, inputs / (1.0 - rate), jnp.zeros((), inputs.dtype))
