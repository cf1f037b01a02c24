"""Attention whose logits come from one linear layer over the concatenated query and key."""

import torch
from torch import Tensor, nn

from .._checks import check_same_batch, check_sequence


class MyAttn(nn.Module):
    """Concatenation attention over a fixed number of values.

    logits = attn([Q; K]),   weights = softmax(logits),   output = attn_combine([Q; weights · V])

    The logits depend on how many values there are, not on what they hold, so the number of rows of V is fixed.

    Args:
        query_size: width of the query, features.
        key_size: width of the key, features.
        value_size1: S, number of value rows (words).
        value_size2: width of one value row, features.
        output_size: width of the output, features.
        device: as for torch.nn.Linear.
        dtype: as for torch.nn.Linear.

    Reference: the attention decoder of "NLP From Scratch: Translation with a Sequence to Sequence Network and
        Attention", https://docs.pytorch.org/tutorials/intermediate/seq2seq_translation_tutorial.html, after
        Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, and Luong et al. 2015, https://arxiv.org/abs/1508.04025
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size1: int,
        value_size2: int,
        output_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query_size = query_size
        self.key_size = key_size
        self.value_size1 = value_size1
        self.value_size2 = value_size2
        self.output_size = output_size
        self.attn = nn.Linear(query_size + key_size, value_size1, device=device, dtype=dtype)
        self.attn_combine = nn.Linear(query_size + value_size2, output_size, device=device, dtype=dtype)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to V; every example of a batch by itself, whatever its batch axes.

        Args:
            Q: query, [*B, 1, query_size].
            K: key, [*B, 1, key_size].
            V: values, [*B, S, value_size2] with S = value_size1.

        Returns:
            (output [*B, 1, output_size], weights [*B, S])

        Raises:
            ValueError: Q or K has more than one row, V not value_size1 rows, or widths or batch axes do not fit.
        """
        check_sequence("Q", Q, "query_size", self.query_size)
        check_sequence("K", K, "key_size", self.key_size)
        check_sequence("V", V, "value_size2", self.value_size2)
        check_same_batch(Q=Q, K=K, V=V)
        if Q.shape[-2] != 1 or K.shape[-2] != 1:
            raise ValueError(f"`Q` and `K` must have one row, got Q {tuple(Q.shape)}, K {tuple(K.shape)}.")
        if V.shape[-2] != self.value_size1:
            raise ValueError(f"`V` must have value_size1={self.value_size1} rows, got {tuple(V.shape)}.")

        logits = self.attn(torch.cat((Q, K), dim=-1))  # *B 1 S
        weights = torch.softmax(logits, dim=-1)
        applied = weights @ V
        output = self.attn_combine(torch.cat((Q, applied), dim=-1))
        return output, weights.squeeze(-2)
