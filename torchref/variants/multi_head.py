"""Multi-head self-attention and cross-attention with an output projection."""

import torch
from torch import Tensor, nn

from .._checks import check_same_batch, check_sequence
from ..core.dot_product import dot_product_attention
from ..core.heads import head_width, merge_heads, split_heads
from ..core.masks import insert_head_axis


class MultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention; heads are consecutive slices of the projected features.

    headₙ = softmax(qₙ kₙᵀ / √H) vₙ,   output = W_o [head₁; …; head_N],   q = Wq x,  k = Wk x,  v = Wv x,  H = D / N

    Args:
        embed_dim: D, features.
        num_heads: N, must divide `embed_dim`.
        device: as for torch.nn.Linear.
        dtype: as for torch.nn.Linear.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`.

    Reference: Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        head_width(embed_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.Wq = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.Wk = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.Wv = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.W_o = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every position of x attend to every position of x that the mask leaves, in each head.

        Args:
            x: inputs, [*B, L, D].
            mask: any dtype, 0 = blocked; with b batch axes on x, rank 2 or less is [L, L], rank b + 2 is [*B, L, L]
                for all heads, rank b + 3 is [*B, N, L, L]. A padding mask over [B, L] is therefore
                `mask[:, None, None, :]`. A query with every key blocked attends uniformly.

        Returns:
            (output [*B, L, D], weights [*B, N, L, L])

        Raises:
            ValueError: x or `mask` has a wrong shape, or a float `mask` holds negative values.
        """
        check_sequence("x", x, "embed_dim", self.embed_dim)
        q = split_heads(self.Wq(x), self.num_heads)  # *B L N H
        k = split_heads(self.Wk(x), self.num_heads)
        v = split_heads(self.Wv(x), self.num_heads)
        mask = None if mask is None else insert_head_axis(mask, num_batch_axes=x.ndim - 2)
        output, weights = dot_product_attention(q, k, v, mask, empty_row="uniform")
        return self.W_o(merge_heads(output)), weights


class MultiHeadCrossAttention(nn.Module):
    """Multi-head attention with queries from one sequence (decoder) and keys and values from another (encoder).

    headₙ = softmax(qₙ kₙᵀ / √H) vₙ,   output = W_o [head₁; …; head_N],   q = Wq x,  k = Wk c,  v = Wv c,  H = D / N

    Args:
        embed_dim: D, features of x and of the output.
        num_heads: N, must divide `embed_dim`.
        kv_dim: features of the context, default `embed_dim`.
        device: as for torch.nn.Linear.
        dtype: as for torch.nn.Linear.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`.

    Reference: Vaswani et al. 2017, sections 3.2.2 and 3.2.3, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kv_dim: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        head_width(embed_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.kv_dim = embed_dim if kv_dim is None else kv_dim
        self.Wq = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.Wk = nn.Linear(self.kv_dim, embed_dim, device=device, dtype=dtype)
        self.Wv = nn.Linear(self.kv_dim, embed_dim, device=device, dtype=dtype)
        self.W_o = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every position of x attend to every position of the context that the mask leaves, in each head.

        Args:
            x: where the queries come from, [*B, T, D].
            context: where the keys and values come from, [*B, S, kv_dim].
            mask: as for `MultiHeadSelfAttention`, with [T, S] in place of [L, L].

        Returns:
            (output [*B, T, D], weights [*B, N, T, S])

        Raises:
            ValueError: x, `context` or `mask` has a wrong shape, or a float `mask` holds negative values.
        """
        check_sequence("x", x, "embed_dim", self.embed_dim)
        check_sequence("context", context, "kv_dim", self.kv_dim)
        check_same_batch(x=x, context=context)
        q = split_heads(self.Wq(x), self.num_heads)  # *B T N H
        k = split_heads(self.Wk(context), self.num_heads)  # *B S N H
        v = split_heads(self.Wv(context), self.num_heads)
        mask = None if mask is None else insert_head_axis(mask, num_batch_axes=x.ndim - 2)
        output, weights = dot_product_attention(q, k, v, mask, empty_row="uniform")
        return self.W_o(merge_heads(output)), weights
