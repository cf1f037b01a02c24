"""Features to heads and back: head n is the n-th consecutive slice of the features."""

from jaxtyping import Array, Shaped


def split_heads(features: Shaped[Array, "*B T F"], num_heads: int) -> Shaped[Array, "*B T N H"]:
    """[*B, T, N·H] → [*B, T, N, H]."""
    return features.reshape(*features.shape[:-1], num_heads, features.shape[-1] // num_heads)


def merge_heads(heads: Shaped[Array, "*B T N V"]) -> Shaped[Array, "*B T F"]:
    """[*B, T, N, V] → [*B, T, N·V]."""
    return heads.reshape(*heads.shape[:-2], heads.shape[-2] * heads.shape[-1])
