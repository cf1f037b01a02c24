"""Masks given as arrays, brought to one form: boolean, True = may attend, broadcastable to (..., N, T, S)."""

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._checks import check_mask_kind, check_shape_in, check_torch_mask_dtype, shape_text
from .._tensors import as_numpy, causal_bias, is_tensor
from .._typing import Size
from .index_functions import with_rank

#: What code written for PyTorch passes: whatever JAX takes as an array, or a torch tensor.
TensorLike = Any


def check_is_array(name: str, value: TensorLike, *, means_blocked: bool = True) -> None:
    """Not a value of jaxattn.masks.

    Raises:
        TypeError: it is one.
    """
    if hasattr(value, "to_array"):
        sense, sign = ("blocked", "~") if means_blocked else ("may attend", "")
        raise TypeError(
            f"`{name}` must be an array, here with True = {sense}, got the mask value {type(value).__name__}, which "
            f"goes to jaxattn.dot_product_attention; pass `{sign}mask.to_array(T, S)`."
        )


def warn_zero_one(name: str, value: TensorLike) -> None:
    """Outside jit: a float mask of 0 and 1 only is more likely a flag than something to be added to logits."""
    if is_traced(value):
        return
    values = np.asarray(value)
    if jnp.issubdtype(values.dtype, jnp.floating) and (values == 1).any() and (values == 0).any():
        if ((values == 0) | (values == 1)).all():
            warnings.warn(
                f"`{name}` is a float mask of 0 and 1, which is added to the logits and blocks nothing; if "
                "it is meant as a flag pass booleans, True as this argument has it.",
                stacklevel=3,
            )


def from_tensor(value: TensorLike) -> Any:
    """A torch tensor as NumPy array; anything else as it is."""
    return as_numpy(value) if is_tensor(value) else value


def as_array(value: TensorLike) -> jax.Array:
    """A torch tensor, or whatever JAX takes as an array."""
    return jnp.asarray(from_tensor(value))


def from_causal_bias(value: TensorLike, *, means_blocked: bool = False) -> Any:
    """torch's CausalBias as boolean array [T, S]; anything else as `from_tensor` has it."""
    known = causal_bias(value)
    if known is None:
        return from_tensor(value)
    offset, lengths = known
    return causal_array(*lengths, offset) != means_blocked


def is_traced(array: object) -> bool:
    """Whether the values of `array` are unknown now (inside jit, vmap, grad)."""
    return isinstance(array, Tracer)


def from_nonzero(mask) -> jax.Array:
    """Any dtype, 0 = blocked: the rule of hand-written PyTorch attention (`masked_fill(mask == 0, -1e9)`).

    Raises:
        TypeError: strings or objects.
        ValueError: outside jit, a float mask holding a negative value: that is an additive mask (0 = may attend),
            which this rule would read upside down.
    """
    mask = from_causal_bias(mask)
    if not is_traced(mask):
        values = np.asarray(mask)  # NumPy: inside jit a comparison in JAX would be traced, known values or not
        check_mask_kind(values)
        if jnp.issubdtype(values.dtype, jnp.floating) and (values < 0).any():
            raise ValueError(
                "`mask` must mark what may be attended with non-zero values, 0 = blocked, got a float mask with "
                "negative values, which looks additive; pass `mask >= 0` if it holds 0 and a large negative number."
            )
    return jnp.asarray(mask).astype(bool)


def insert_head_axis(mask: jax.Array, batch_rank: int) -> jax.Array:
    """A mask over [*B, T, S] made broadcastable to [*B, N, T, S].

    With b = `batch_rank`: rank 2 or less is [T, S] for all, rank b + 2 is one mask an example and gets its head axis,
    rank b + 3 has it already.

    Raises:
        ValueError: any other rank.
    """
    if mask.ndim <= 2 or mask.ndim == batch_rank + 3:
        return mask
    if mask.ndim == batch_rank + 2:
        return jnp.expand_dims(mask, -3)
    raise ValueError(
        f"`mask` must have rank 2 or less ([T, S]), {batch_rank + 2} (one for each example) or {batch_rank + 3} (with "
        f"heads) for inputs with {batch_rank} batch axes, got shape {shape_text(mask.shape)}; "
        "a padding mask over keys (B, S) is `mask[:, None, None, :]`."
    )


def causal_array(length_q: int, length_kv: int, offset: int = 0) -> np.ndarray:
    """[T, S], True where j ≤ i + offset: query i may see key j."""
    return np.tri(length_q, length_kv, offset, dtype=bool)


def from_torch_masks(
    attn_mask: TensorLike | None,
    key_padding_mask: TensorLike | None,
    logits_shape: tuple[Size, ...],
    *,
    is_causal: bool = False,
    appended: int = 0,
) -> tuple[jax.Array | None, jax.Array | None]:
    """torch.nn's `attn_mask` and `key_padding_mask` as (mask, bias) for [*B, N, T, S + appended].

    Boolean: True = blocked, so it joins the mask negated. Floating: added to the logits, so it joins the bias.

    Args:
        attn_mask: [T, S] or [B·N, T, S] with index b·N + n; a torch tensor, too.
        key_padding_mask: [*B, S], likewise.
        logits_shape: [*B, N, T, S], before rows are appended.
        is_causal: attn_mask is promised to be the causal one; checked outside jit, and both are applied.
        appended: rows added to keys and values (add_bias_kv, add_zero_attn); every query may attend to them.

    Raises:
        TypeError: integers, as torch's plain path refuses them; values of jaxattn.masks.
        ValueError: any other shape; is_causal without attn_mask, or with another mask than the causal one.
    """
    *batch, num_heads, length_q, length_kv = logits_shape
    attn_mask = from_causal_bias(attn_mask, means_blocked=True)
    key_padding_mask = from_tensor(key_padding_mask)
    for name, value in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if value is not None:
            check_is_array(name, value)
            warn_zero_one(name, value)
    if is_causal and attn_mask is None:
        raise ValueError(
            "`is_causal=True` is a promise about `attn_mask`, got attn_mask=None; pass the causal mask too."
        )
    given = []
    if is_causal and not is_traced(attn_mask):
        check_causal(attn_mask, causal_array(length_q, length_kv))
    if attn_mask is not None:
        attn_mask = jnp.asarray(attn_mask)
        full = (math.prod(batch) * num_heads, length_q, length_kv)
        check_shape_in("attn_mask", attn_mask, ((length_q, length_kv), full), "[T, S] or [B·N, T, S]")
        given.append(("attn_mask", attn_mask.reshape(logits_shape) if attn_mask.ndim == 3 else attn_mask))
    if key_padding_mask is not None:
        key_padding_mask = jnp.asarray(key_padding_mask)
        check_shape_in("key_padding_mask", key_padding_mask, ((*batch, length_kv),), "[*B, S]")
        given.append(("key_padding_mask", key_padding_mask[..., None, None, :]))
    mask = jnp.arange(length_kv)[None] <= jnp.arange(length_q)[:, None] if is_causal else None
    bias = None
    for name, array in given:
        check_torch_mask_dtype(name, array)
        if array.dtype == jnp.bool_:
            mask = _joined(operator.and_, mask, ~array)
        else:
            bias = _joined(operator.add, bias, array)
    return _append_columns(mask, appended, True), _append_columns(bias, appended, 0)


def _joined(combine: Callable, first: jax.Array | None, second: jax.Array) -> jax.Array:
    if first is None:
        return second
    rank = max(first.ndim, second.ndim)
    return combine(with_rank(first, rank), with_rank(second, rank))


def check_causal(attn_mask, causal: np.ndarray) -> None:
    """Known values: torch's `attn_mask` blocks what the causal mask blocks and nothing else."""
    values = np.asarray(attn_mask)
    expected = ~causal if values.dtype == np.bool_ else np.where(causal, 0.0, -np.inf)
    if values.shape[-2:] != causal.shape or not (values == expected).all():
        raise ValueError(
            "`is_causal=True` promises that `attn_mask` is the causal mask (True or -inf above the diagonal), got "
            "another one; pass is_causal=False to apply the mask as it is."
        )


def _append_columns(array: jax.Array | None, columns: int, value: bool | int) -> jax.Array | None:
    if array is None or columns == 0:
        return array
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, columns)], constant_values=value)
