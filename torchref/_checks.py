"""What a user reads after a bad shape, worded once."""

import torch
from torch import Tensor


def check_sequence(name: str, x: Tensor, size_name: str, size: int) -> None:
    """Raise ValueError unless `x` is [..., length, size]."""
    if x.ndim < 2 or x.shape[-1] != size:
        raise ValueError(
            f"`{name}` must have shape [..., length, {size_name}] with {size_name}={size}, got {tuple(x.shape)}."
        )


def check_same_batch(**tensors: Tensor) -> None:
    """Raise ValueError unless all axes before the last two are the same in every tensor."""
    if len({x.shape[:-2] for x in tensors.values()}) > 1:
        names = ", ".join(f"`{name}`" for name in tensors)
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
        raise ValueError(f"{names} must have the same batch axes (all axes before the last two), got {shapes}.")


def check_broadcasts(name: str, x: Tensor, axes: str, shape: torch.Size) -> None:
    """Raise ValueError unless `x` broadcasts to `shape` without enlarging it; `axes` names the axes for the user."""
    try:
        fits = torch.broadcast_shapes(x.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"`{name}` must broadcast to {axes} = {tuple(shape)}, got {tuple(x.shape)}.")
