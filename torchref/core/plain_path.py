"""The switch that makes torch.nn's attention modules compute what their documentation says."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_path() -> Iterator[None]:
    """Switch torch's attention fast path off inside the block and restore the earlier setting after it.

    torch.nn.MultiheadAttention, TransformerEncoderLayer and TransformerEncoder take a fused kernel in eval mode
    without gradients. It answers differently: padded rows come back as zeros, float masks count as boolean, rows
    with nothing to attend are NaN. The setting is global to the process, so it also holds for other threads.

    Example:
        >>> with plain_path():
        ...     output = encoder(x, src_key_padding_mask=padding)

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html
    """
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
