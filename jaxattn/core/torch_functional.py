"""torch.nn.functional.scaled_dot_product_attention's contract."""

from typing import Any

import jax
import jax.numpy as jnp

from .._checks import check_floating, shape_text
from .._tensors import causal_bias
from .._typing import Precision
from .dot_product import dot_product_attention
from .mask_arrays import TensorLike, as_array, check_is_array, from_tensor, warn_zero_one
from .masks import causal


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_mask: TensorLike | None = None,
    implementation: str = "auto",
    precision: Precision = None,
) -> jax.Array:
    """output = dropout(softmax(query keyᵀ · scale + attn_mask)) value, with PyTorch's names, layout and masks.

    A query with nothing to attend gives 0. `jaxattn.dot_product_attention` is the operation itself: its layout is
    [*B, length, heads, width], it gives the weights too, and takes masks that are no arrays.

    Args:
        query: [*B, N, T, H] or [T, H]; a torch tensor, too, as every other array here.
        key: [*B, N, S, H], or [*B, K, S, H] with enable_gqa. Axes before the length broadcast, K too when it is 1.
        value: [*B, N, S, V], or [*B, K, S, V] with enable_gqa.
        attn_mask: broadcastable to [*B, N, T, S]; boolean True = may attend, which is the opposite of what it means to
            torch.nn's modules; floating = added to the logits.
        dropout_p: share of the weights that is dropped, in [0, 1), in every call: there is no training mode. Needs
            dropout_rng or dropout_mask.
        is_causal: query i sees the keys j ≤ i, also where T ≠ S.
        scale: factor of the logits; None is 1/√H.
        enable_gqa: head n reads key and value head n // (N/K).
        dropout_rng: JAX key that draws what is dropped.
        dropout_mask: the weights that are kept (True), broadcastable to [*B, N, T, S], instead of drawing them.
        implementation: as dot_product_attention has it.
        precision: of the matrix products.

    Returns:
        The output [*B, N, T, V], in query's dtype.

    Raises:
        ValueError: attn_mask beside is_causal; shapes that do not fit; dropout without randomness.
        TypeError: integer masks, arrays that are not floating.
        NotImplementedError: an implementation that cannot do what is asked.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """
    if is_causal and attn_mask is not None:
        raise ValueError("`attn_mask` must be None with is_causal=True, got both; combine them into one mask.")
    arrays = {name: as_array(array) for name, array in (("query", query), ("key", key), ("value", value))}
    for name, array in arrays.items():
        check_floating(name, array)
        if array.ndim < 3 and (array.ndim < 2 or enable_gqa):
            axes = "[*B, heads, length, width]" if enable_gqa else "[*B, length, width]"
            raise ValueError(f"`{name}` must be {axes}, got shape {shape_text(array.shape)}.")
    heads_first = _grouped(**arrays) if enable_gqa else _broadcast(*arrays.values(), kept=2)
    single = heads_first[0].ndim == 2
    q, k, v = (jnp.expand_dims(x, -2) if single else jnp.swapaxes(x, -3, -2) for x in heads_first)
    mask: Any = causal() if is_causal else None
    bias = None
    if (known := causal_bias(attn_mask)) is not None:
        offset, lengths = known
        if lengths != (q.shape[-3], k.shape[-3]):
            raise ValueError(
                f"`attn_mask`, a CausalBias, must be made for the lengths of query and key "
                f"{shape_text((q.shape[-3], k.shape[-3]))}, got {shape_text(lengths)}."
            )
        mask = causal(offset)
    elif attn_mask is not None:
        attn_mask = from_tensor(attn_mask)
        check_is_array("attn_mask", attn_mask, means_blocked=False)
        warn_zero_one("attn_mask", attn_mask)
        attn_mask = jnp.asarray(attn_mask)
        additive = jnp.issubdtype(attn_mask.dtype, jnp.floating)
        mask, bias = (None, attn_mask) if additive else (attn_mask, None)
    output, _ = dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        dropout_rate=dropout_p,
        dropout_rng=dropout_rng,
        dropout_mask=None if dropout_mask is None else as_array(dropout_mask),
        implementation=implementation,
        precision=precision,
    )
    return jnp.squeeze(output, -2) if single else jnp.swapaxes(output, -3, -2)


def _broadcast(*arrays: jax.Array, kept: int) -> list[jax.Array]:
    """The arrays with equal leading axes: all but the last `kept`."""
    try:
        leading = jnp.broadcast_shapes(*(array.shape[:-kept] for array in arrays))
    except ValueError:
        shapes = ", ".join(shape_text(array.shape) for array in arrays)
        raise ValueError(
            f"The leading axes of `query`, `key` and `value` must broadcast, got shapes {shapes}; with fewer heads of "
            "`key` and `value` (axis -3) than of `query` pass enable_gqa=True."
        ) from None
    return [jnp.broadcast_to(array, (*leading, *array.shape[-kept:])) for array in arrays]


def _grouped(query: jax.Array, key: jax.Array, value: jax.Array) -> list[jax.Array]:
    """As they are but for the batch axes; keys and values of unlike numbers of heads are repeated."""
    heads, kv_heads = query.shape[-3], (key.shape[-3], value.shape[-3])
    if any(count < 1 or heads % count for count in kv_heads):
        raise ValueError(
            "The heads of `query` (axis -3) must be a multiple of those of `key` and of `value`, got "
            f"{heads}, {kv_heads[0]} and {kv_heads[1]}."
        )
    if kv_heads[0] != kv_heads[1]:
        key, value = (jnp.repeat(array, heads // array.shape[-3], axis=-3) for array in (key, value))
    return _broadcast(query, key, value, kept=3)
