"""Products that keep what isn't finite where it belongs: 0 · NaN and 0 · ∞ count as 0 here, and nothing else does.

A weight of 0 is a key that isn't attended to, so whatever its value holds must not reach the output, and whatever its
key holds must not reach the gradient of the query.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Product = Callable[..., jax.Array]


def finite_part(array: jax.Array) -> jax.Array:
    """The array, and 0 where it isn't finite."""
    return jnp.where(jnp.isfinite(array), array, jnp.zeros((), array.dtype))


def replaced_if(needed: jax.Array, found: Any, exact: Callable[[], Any]) -> Any:
    """`found`, and exact() where the scalar `needed` is True; not computed otherwise, under vmap neither.

    `lax.cond` computes both under vmap. No derivative passes through `exact`.
    """
    return lax.fori_loop(0, needed.astype(jnp.int32), lambda _, __: exact(), found)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def logits_product(product: Product, exact: Product | None, precision: Any, q: jax.Array, k: jax.Array) -> jax.Array:
    """product(q, k), bilinear, whose gradients see finite parts: what a key holds reaches queries by its logit alone.

    Where it isn't finite it is computed again by `exact`, if there is one.
    """
    return _logits_product(product, exact, precision, q, k)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _logits_product(product: Product, exact: Product | None, precision: Any, q: jax.Array, k: jax.Array) -> jax.Array:
    found = product(q, k, precision=precision)
    if exact is None:
        return found
    return replaced_if(~jnp.all(jnp.isfinite(found)), found, lambda: exact(q, k, precision=precision))


@logits_product.defjvp
def _logits_tangent(
    product: Product, exact: Product | None, precision: Any, primals: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    (q, k), (d_q, d_k) = primals, tangents
    change = product(d_q, finite_part(k), precision=precision) + product(finite_part(q), d_k, precision=precision)
    return logits_product(product, exact, precision, q, k), change


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def weighted_sum(product: Product, precision: Any, weights: jax.Array, values: jax.Array) -> jax.Array:
    """product(weights, values), bilinear, where a weight of 0 takes nothing from its value, NaN and ∞ included."""
    return _weighted_sum(product, precision, weights, values)


@partial(jax.jit, static_argnums=(0, 1))
def _weighted_sum(product: Product, precision: Any, weights: jax.Array, values: jax.Array) -> jax.Array:
    found = product(weights, values, precision=precision)

    def exact() -> jax.Array:
        def meets(where: jax.Array) -> jax.Array:
            hits = product((weights != 0).astype(weights.dtype), where.astype(values.dtype), precision=precision)
            return jnp.where(hits > 0, jnp.inf, 0.0).astype(hits.dtype)

        unknown = jnp.isnan(values)
        infinite = meets(unknown | (values == jnp.inf)) - meets(unknown | (values == -jnp.inf))
        return product(weights, finite_part(values), precision=precision) + infinite

    return replaced_if(~jnp.all(jnp.isfinite(found)), found, exact)


@weighted_sum.defjvp
def _weighted_tangent(product: Product, precision: Any, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (weights, values), (d_weights, d_values) = primals, tangents
    output = weighted_sum(product, precision, weights, values)
    by_weights = product(d_weights, finite_part(values), precision=precision)
    unknown = jnp.where(jnp.isfinite(output), jnp.ones((), output.dtype), jnp.nan)
    return output, by_weights * unknown + product(weights, d_values, precision=precision)
