"""A linear map with its weight in PyTorch's layout, for modules that keep their original's parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._typing import DType, Precision
from .dtypes import at_least_float32
from .index_functions import with_rank


def project(
    inputs: Float[Array, "*B T I"],
    weight: Float[Array, "O I"],
    bias: Float[Array, "O"] | None = None,
    *,
    dtype: DType = None,
    precision: Precision = None,
) -> Float[Array, "*B T O"]:
    """inputs weightᵀ + bias, computed in `dtype` or in what inputs and weight promote to."""
    dtype = jnp.result_type(inputs, weight) if dtype is None else dtype
    outputs = jax.lax.dot_general(
        inputs.astype(dtype), weight.astype(dtype), (((inputs.ndim - 1,), (1,)), ((), ())), precision=precision
    )
    return outputs if bias is None else add_bias(outputs, bias)


def add_bias(outputs: Float[Array, "*B O"], bias: Float[Array, "O"]) -> Float[Array, "*B O"]:
    """outputs + bias, added in float32 at least and cast back, so that the gradient of the bias is summed there.

    Summed in bfloat16 over all rows, as an addition in bfloat16 makes it, that gradient has 8 times torch's error.
    """
    dtype = at_least_float32(outputs)
    return (outputs.astype(dtype) + with_rank(bias, outputs.ndim).astype(dtype)).astype(outputs.dtype)
