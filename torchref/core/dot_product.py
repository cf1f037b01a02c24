"""The attention formula."""

import math

import torch
from torch import Tensor

from .._checks import check_broadcasts
from .masks import blocked_keys, fill_value


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    empty_row: str = "zero",
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with grouped heads.

    logits[n, t, s] = scale · q[t, n] · k[s, n // G] + bias[n, t, s],   G = N / K
    weights = softmax over s of the logits that `mask` leaves
    output[t, n] = Σₛ weights[n, t, s] · v[s, n // G]

    Args:
        q: queries, [..., T, N, H].
        k: keys, [..., S, K, H]; K divides N.
        v: values, [..., S, K, V].
        mask: broadcastable to [..., N, T, S], any dtype, 0 = blocked.
        bias: float, broadcastable to [..., N, T, S], added to the logits before the mask.
        scale: factor on q · k, default 1 / √H.
        empty_row: what a query with every key blocked gets. "zero": weights 0; "uniform": weights 1 / S, from filling
            blocked logits with max(−1e9, finfo.min); "nan": NaN, from filling them with −∞.

    Returns:
        (output [..., T, N, V], weights [..., N, T, S])

    Raises:
        ValueError: K does not divide N, `mask` or `bias` does not fit, or `empty_row` is unknown.

    Reference: Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762;
        grouped heads: Ainslie et al. 2023, section 2.2, https://arxiv.org/abs/2305.13245
    """
    num_heads, num_kv_heads = q.shape[-2], k.shape[-2]
    if num_kv_heads < 1 or num_heads % num_kv_heads != 0:
        raise ValueError(f"The heads of `k` must divide the heads of `q`, got {num_kv_heads} and {num_heads}.")
    groups = num_heads // num_kv_heads
    k = k.repeat_interleave(groups, dim=-2)
    v = v.repeat_interleave(groups, dim=-2)

    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    logits = torch.einsum("...tnh,...snh->...nts", q, k) * scale
    if bias is not None:
        check_broadcasts("bias", bias, "(..., N, T, S)", logits.shape)
        logits = logits + bias
    weights = masked_softmax(logits, mask, empty_row)
    output = torch.einsum("...nts,...snv->...tnv", weights, v)
    return output, weights


def masked_softmax(logits: Tensor, mask: Tensor | None, empty_row: str) -> Tensor:
    """Softmax over the last axis of what `mask` leaves, in the dtype of `logits`; rules as in `dot_product_attention`.

    Args:
        logits: [..., T, S].
        mask: broadcastable to `logits`, any dtype, 0 = blocked.
        empty_row: "zero", "uniform" or "nan".

    Raises:
        ValueError: `mask` does not fit or `empty_row` is unknown.
    """
    if empty_row not in ("zero", "uniform", "nan"):
        raise ValueError(f'`empty_row` must be "zero", "uniform" or "nan", got {empty_row!r}.')
    if mask is None:
        return torch.softmax(logits, dim=-1)
    blocked = blocked_keys(mask, logits.shape)
    if empty_row == "uniform":
        return torch.softmax(logits.masked_fill(blocked, fill_value(logits.dtype)), dim=-1)
    weights = torch.softmax(logits.masked_fill(blocked, -math.inf), dim=-1)
    if empty_row == "zero":
        weights = weights.masked_fill(blocked.all(dim=-1, keepdim=True), 0.0)
    return weights
