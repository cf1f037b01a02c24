"""The dense implementation with products for few queries: keys and values are read where they lie, once."""

import jax
import jax.numpy as jnp
from jax import lax

from .._typing import Keys, Logits, Precision, Queries, Values
from .dense import dense_attention
from .dtypes import at_least_float32
from .problem import Problem, Result


def decode_attention(problem: Problem) -> Result:
    """The formula of the dense implementation for a query or a few, as when tokens are generated from a cache.

    Heads first, as other implementations want them, all keys and values would have to be copied for a handful of rows.
    """
    return dense_attention(problem, products=few_products, values=few_values)


def few_products(q: Queries, k: Keys, *, precision: Precision = None) -> Logits:
    """q kᵀ as one product: all heads of a key side by side times a matrix with the queries on its block diagonal.

    Only for what is finite: the zeros beside the diagonal meet the keys of other heads.
    """
    *batch, length_q, num_heads, width = q.shape
    length_kv, kv_heads = k.shape[-3:-1]
    dtype = at_least_float32(q, k)
    columns = jnp.moveaxis(q, -3, -2).reshape(*batch, kv_heads, -1, width)  # *B K GT H
    diagonal = jnp.einsum("...kch,jk->...jhkc", columns, jnp.eye(kv_heads, dtype=q.dtype))
    diagonal = diagonal.reshape(*batch, kv_heads * width, num_heads * length_q)
    keys = k.reshape(*batch, length_kv, kv_heads * width)
    products = jnp.matmul(keys, diagonal, precision=precision, preferred_element_type=dtype)  # *B S KGT
    products = lax.optimization_barrier(products)  # or XLA would move the transpose to the keys
    return jnp.swapaxes(products, -1, -2).reshape(*batch, num_heads, length_q, length_kv)


def few_values(weights: Logits, v: Values, *, precision: Precision = None) -> jax.Array:
    """The values weighted, as one product of every head with all of v, of which its own part is kept."""
    *batch, num_heads, length_q, length_kv = weights.shape
    kv_heads, width = v.shape[-2:]
    dtype = at_least_float32(v)
    rows = weights.reshape(*batch, num_heads * length_q, length_kv)
    values = v.reshape(*batch, length_kv, kv_heads * width)
    pairs = jnp.matmul(rows, values, precision=precision, preferred_element_type=dtype)
    pairs = pairs.reshape(*batch, kv_heads, -1, kv_heads, width)
    output = jnp.stack([pairs[..., head, :, head, :] for head in range(kv_heads)], axis=-3)  # *B K GT V
    return jnp.moveaxis(output.reshape(*batch, num_heads, length_q, width), -3, -2)  # *B T N V
