"""Sinusoidal positions: the table that is added to token embeddings."""

import numpy as np


def sinusoidal_table(length: int, embed_dim: int) -> np.ndarray:
    """pe[t, 2i] = sin(t / 10000^(2i/D)), pe[t, 2i+1] = cos(t / 10000^(2i/D)); float64 [length, embed_dim].

    Angles in radians, computed in float64: bfloat16 cannot even hold position 257. An odd `embed_dim` ends on a sine.

    Reference: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
    """
    feature = np.arange(embed_dim)
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * (feature // 2) / embed_dim)
    return np.where(feature % 2 == 0, np.sin(angles), np.cos(angles))
