"""Dropout with inverted scaling, its randomness a key or a keep mask given by the caller."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float

from .._checks import check_rate
from .._typing import Size
from .index_functions import Span, positions, with_rank


def draw_keep_mask(rng: jax.Array, rate: float, shape: tuple[Size, ...]) -> jax.Array:
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
    return jnp.where(with_rank(keep_mask, inputs.ndim), inputs / (1.0 - rate), jnp.zeros((), inputs.dtype))


def masks_below(masks: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """Keep masks of a child by their paths below it: {"0.dropout": m} below "0" is {"dropout": m}."""
    if masks is None:
        return None
    return {path.removeprefix(f"{name}."): mask for path, mask in masks.items() if path.startswith(f"{name}.")}


def keep_words(rng: jax.Array) -> jax.Array:
    """Two uint32 that stand for a key of any kind."""
    return jax.random.bits(rng, (2,), jnp.uint32)


def keep_bits(words: jax.Array, rate: float, first_head: Any, length_q: Size, n: Span, i: Span, j: Span) -> jax.Array:
    """Boolean [n, i, j], True with probability 1 − rate: which weights are kept, the same whatever the block.

    Each element's random bits are a function of its own position (head over all examples, query, key): the counters of
    Threefry-2×32, so a block draws what the whole would have drawn there.

    Args:
        words: uint32 [2], from `keep_words`.
        rate: the share that is dropped, in [0, 1).
        first_head: head 0 of the example among the heads of all examples, b · N.
        length_q: T.
        n: query heads.
        i: queries.
        j: keys.

    Reference: Salmon et al. 2011, section 3.3, https://doi.org/10.1145/2063384.2063405.
    """
    shape = (n.size, i.size, j.size)
    heads, queries, keys = ((first_head + positions(n)), positions(i), positions(j))
    first_row = heads.astype(jnp.uint32)[:, None] * jnp.asarray(length_q, jnp.uint32)
    rows = first_row + queries.astype(jnp.uint32)[None]
    high = jnp.broadcast_to(rows[..., None], shape)
    low = jnp.broadcast_to(keys.astype(jnp.uint32)[None, None], shape)
    bits = threefry_2x32(words, jnp.stack([high, low]).reshape(-1)).reshape(2, *shape)
    return bits[0] ^ bits[1] >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def draw_attention_keep_mask(rng: jax.Array, rate: float, logits_shape: tuple[Size, ...]) -> jax.Array:
    """[*B, N, T, S]: the weights that attention with this key keeps, in every implementation."""
    *batch, num_heads, length_q, length_kv = logits_shape
    heads = Span(0, math.prod(batch) * num_heads)
    bits = keep_bits(keep_words(rng), rate, 0, length_q, heads, Span(0, length_q), Span(0, length_kv))
    return bits.reshape(logits_shape)
