"""What a model is called with under Hugging Face's argument names: ids and masks, checked and made ready."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import shape_text
from .._typing import ArrayLike, DType, Size
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import is_traced


def integer_ids(name: str, ids: ArrayLike, rows: int, shape: tuple[Size, ...] | None = None) -> jax.Array:
    """`ids` as an array of indices into `rows` rows.

    Outside jit every id must be in range. Where its value is unknown, one above the range reads NaN and a negative one
    counts from the end, as jnp.take has it.

    Args:
        name: the argument, for errors.
        ids: integers.
        rows: they must lie in [0, rows).
        shape: [*B, T] that the array must broadcast to, its last axis being T; None takes any shape of rank 1 or more.

    Raises:
        TypeError: not integers.
        ValueError: a shape that does not fit; ids out of range (outside jit).
    """
    array = _as_array(ids)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"`{name}` must be integers, got dtype {array.dtype}.")
    if shape is None and not array.ndim:
        raise ValueError(f"`{name}` must be [*B, T], got shape ().")
    if shape is not None and not _broadcasts(array.shape, shape):
        raise ValueError(
            f"`{name}` must be [*B, T] = {shape_text(shape)} or broadcast to it from [T], "
            f"got shape {shape_text(array.shape)}."
        )
    if not is_traced(array) and array.size:
        values = np.asarray(array)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= rows:
            raise ValueError(f"`{name}` must lie in [0, {rows}), got values from {low} to {high}.")
    return jnp.asarray(array)


def _as_array(values: ArrayLike) -> Any:
    """NumPy, so that a 64-bit integer is looked at before JAX truncates it; JAX's own arrays stay where they are."""
    return values if isinstance(values, jax.Array) else np.asarray(values)


def _broadcasts(shape: tuple[Size, ...], target: tuple[Size, ...]) -> bool:
    pairs = list(zip(reversed(shape), reversed(target), strict=False))
    fits = all(size in (1, full) for size, full in pairs[1:])
    return 1 <= len(shape) <= len(target) and shape[-1] == target[-1] and fits


def attention_bias(
    attention_mask: ArrayLike | None, shape: tuple[Size, ...], num_heads: int, dtype: DType
) -> tuple[jax.Array | None, jax.Array | None]:
    """Hugging Face's `attention_mask` (1 = attend) as (bias on keys [*B, S], bias on pairs [B·N, T, S]), one of them.

    Blocked is the lowest finite number, not −inf: it absorbs any logit, so blocked keys get weight 0 exactly and a
    query with nothing to attend gets 1/S for each key, and in both cases the gradient is transformers' too.

    Args:
        attention_mask: integers or booleans, non-zero = attend, [*B, S] for keys or [*B, T, S] for pairs.
        shape: [*B, T] of the ids, T = S.
        num_heads: N.
        dtype: of the hidden states; the bias has at least float32.

    Raises:
        TypeError: a floating mask.
        ValueError: another shape.
    """
    if attention_mask is None:
        return None, None
    mask = _as_array(attention_mask)
    if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.integer):
        raise TypeError(
            f"`attention_mask` must be integers or booleans with 1 = attend, got dtype {mask.dtype}; pass "
            "`attention_mask != 0` if it holds 0 and 1, `attention_mask >= 0` if it is additive."
        )
    pairs = (*shape, shape[-1])
    if mask.shape not in (shape, pairs):
        raise ValueError(
            f"`attention_mask` must be [*B, S] = {shape_text(shape)} or [*B, T, S] = {shape_text(pairs)}, "
            f"got shape {shape_text(mask.shape)}."
        )
    dtype = at_least_float32(dtype)
    bias = jnp.where(jnp.asarray(mask).astype(bool), jnp.zeros((), dtype), jnp.finfo(dtype).min)
    if mask.shape == shape:
        return bias, None
    bias = jnp.broadcast_to(bias[..., None, :, :], (*shape[:-1], num_heads, *pairs[-2:]))  # *B N T S
    return None, bias.reshape(-1, *pairs[-2:])
