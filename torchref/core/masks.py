"""The mask rule: 0 (or False) = blocked, anything else = may attend, in any dtype."""

import torch
from torch import Tensor

from .._checks import check_broadcasts


def fill_value(dtype: torch.dtype) -> float:
    """max(−1e9, the lowest finite number of `dtype`): what a blocked logit becomes.

    Args:
        dtype: floating dtype of the logits. float16 ends at −65504, where −1e9 would be −∞.
    """
    return max(-1e9, torch.finfo(dtype).min)


def blocked_keys(mask: Tensor, shape: torch.Size, axes: str = "(..., T, S)") -> Tensor:
    """blocked[..., i, j] = (mask[..., i, j] == 0), boolean, True = blocked.

    Args:
        mask: any dtype, broadcastable to `shape`; 0 = blocked.
        shape: shape of the logits, [..., T, S].
        axes: how the error names the axes of `shape`.

    Raises:
        ValueError: `mask` does not broadcast to `shape`, or is a float mask with a negative value.
    """
    check_broadcasts("mask", mask, axes, shape)
    if mask.is_floating_point() and bool((mask < 0).any()):
        raise ValueError(
            "`mask` must be 0 where a key is blocked and non-zero where it may be attended, got a float mask with "
            "negative values, which looks additive. Pass `mask == 0` of an additive mask instead."
        )
    return mask == 0


def insert_head_axis(mask: Tensor, num_batch_axes: int) -> Tensor:
    """Bring a mask to a rank that broadcasts against [*B, N, T, S], where *B are b batch axes.

    Rank 2 or less is [T, S], for all examples and heads; rank b + 2 is [*B, T, S], for all heads;
    rank b + 3 is [*B, N, T, S]. A padding mask over [B, S] is therefore `mask[:, None, None, :]`.

    Args:
        mask: any dtype.
        num_batch_axes: b.

    Raises:
        ValueError: any other rank.
    """
    if mask.ndim <= 2 or mask.ndim == num_batch_axes + 3:
        return mask
    if mask.ndim == num_batch_axes + 2:
        return mask.unsqueeze(-3)
    raise ValueError(
        f"`mask` must have rank 2 or less ([T, S]), {num_batch_axes + 2} ([*B, T, S]) or {num_batch_axes + 3} "
        f"([*B, N, T, S]) for inputs with {num_batch_axes} batch axes, got {tuple(mask.shape)}."
    )
