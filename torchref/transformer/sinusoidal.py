"""Sinusoidal positions, added to the inputs."""

import torch
from torch import Tensor, nn

from .._checks import check_sequence


class SinusoidalPositionalEncoding(nn.Module):
    """Adds fixed sines and cosines of the position to x; nothing is learned and nothing is in the state dict.

    output[t] = x[t] + pe[t],   pe[t, 2i] = sin(t / 10000^(2i / D)),   pe[t, 2i + 1] = cos(t / 10000^(2i / D))

    Args:
        embed_dim: D, features; odd widths end with a sine.
        max_len: longest sequence accepted, tokens.
        device: accepted as by the other modules, without effect: there are no parameters, and pe follows x.
        dtype: likewise.

    Reference: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        max_len: int = 5000,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.max_len = max_len

    def forward(self, x: Tensor) -> Tensor:
        """Add the encoding of positions 0 … L − 1.

        Args:
            x: inputs, [*B, L, D].

        Returns:
            [*B, L, D], in the dtype of x; the angles are computed in float64 whatever that dtype is.

        Raises:
            ValueError: x has a wrong width, or is longer than `max_len`.
        """
        check_sequence("x", x, "embed_dim", self.embed_dim)
        length = x.shape[-2]
        if length > self.max_len:
            raise ValueError(f"`x` must not be longer than max_len={self.max_len}, got length {length}.")
        return x + sinusoidal_table(length, self.embed_dim).to(x)


def sinusoidal_table(length: int, embed_dim: int) -> Tensor:
    """pe of `SinusoidalPositionalEncoding`, [length, embed_dim] in float64.

    Args:
        length: number of positions, tokens.
        embed_dim: D, features.
    """
    positions = torch.arange(length, dtype=torch.float64)[:, None]
    exponents = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    angles = positions / 10000.0**exponents  # radians
    table = torch.zeros(length, embed_dim, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : embed_dim // 2])
    return table
