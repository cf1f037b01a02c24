"""Single-head scaled dot-product self-attention without an output projection."""

import math

import torch
from torch import Tensor, nn

from .._checks import check_sequence
from ..core.dot_product import masked_softmax


class ScaledDotProductSelfAttention(nn.Module):
    """Scaled dot-product self-attention, one head.

    q = W_q x,   k = W_k x,   v = W_v x,   weights = softmax(q kᵀ / √D),   output = weights · v

    Args:
        embed_dim: D, features.
        device: as for torch.nn.Linear.
        dtype: as for torch.nn.Linear.

    Reference: Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self, embed_dim: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.W_q = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.W_k = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.W_v = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every position of x attend to every position of x that the mask leaves.

        Args:
            x: inputs, [*B, L, D].
            mask: broadcastable to [*B, L, L], any dtype, 0 = blocked. A blocked logit becomes max(−1e9, finfo.min),
                so a query with every key blocked attends uniformly.

        Returns:
            (output [*B, L, D], weights [*B, L, L])

        Raises:
            ValueError: x or `mask` has a wrong shape, or a float `mask` holds negative values.
        """
        check_sequence("x", x, "embed_dim", self.embed_dim)
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        logits = q @ k.transpose(-2, -1) / math.sqrt(self.embed_dim)
        weights = masked_softmax(logits, mask, empty_row="uniform")
        return torch.matmul(weights, v), weights
