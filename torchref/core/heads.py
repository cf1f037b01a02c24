"""Heads are consecutive slices of the features: head n owns features n·H … n·H + H − 1."""

from torch import Tensor


def head_width(embed_dim: int, num_heads: int) -> int:
    """H = D / N.

    Args:
        embed_dim: D, features.
        num_heads: N.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`.
    """
    if num_heads < 1 or embed_dim % num_heads != 0:
        raise ValueError(f"`num_heads` must divide `embed_dim`, got num_heads={num_heads}, embed_dim={embed_dim}.")
    return embed_dim // num_heads


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[..., L, N·H] → [..., L, N, H].

    Args:
        x: features, [..., L, N·H].
        num_heads: N.
    """
    return x.unflatten(-1, (num_heads, head_width(x.shape[-1], num_heads)))


def merge_heads(x: Tensor) -> Tensor:
    """[..., L, N, H] → [..., L, N·H], the inverse of `split_heads`.

    Args:
        x: features by head, [..., L, N, H].
    """
    return x.flatten(-2)
