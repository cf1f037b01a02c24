"""torch.nn in training mode with given keep masks: what is dropped becomes an argument, as it is here."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from torch import nn


def drawn_masks(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Three in four are kept."""
    return {path: rng.random(shape) < 0.75 for path, shape in shapes.items()}


@contextmanager
def keeping(module: nn.Module, masks: Mapping[str, np.ndarray]) -> Iterator[nn.Module]:
    """The module in training mode; each dropout keeps what its path's mask says, attentions by their own path."""
    running: list[str] = []

    def kept(values: torch.Tensor, path: str, rate: float) -> torch.Tensor:
        mask = torch.from_numpy(masks[path])
        assert values.numel() == mask.numel()
        return values * mask.reshape(values.shape) / (1 - rate)

    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False):
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if is_causal:
            attn_mask = nn.Transformer.generate_square_subsequent_mask(q.shape[-2], dtype=q.dtype)
        weights = torch.softmax(logits if attn_mask is None else logits + attn_mask, dim=-1)
        return kept(weights, running[-1], dropout_p) @ v

    def dropout(values, p=0.5, training=True, inplace=False):
        return kept(values, running[-1], p)

    def note(path: str):
        return lambda part, inputs: running.append(path)

    parts = [(path, p) for path, p in module.named_modules() if isinstance(p, nn.Dropout | nn.MultiheadAttention)]
    hooks = [part.register_forward_pre_hook(note(path)) for path, part in parts]
    patches = mock.patch.multiple(nn.functional, scaled_dot_product_attention=attention, dropout=dropout)
    module.train()
    try:
        with patches:
            yield module
    finally:
        module.eval()
        for hook in hooks:
            hook.remove()
