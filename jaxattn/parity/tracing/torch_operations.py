"""The attention operations that one torch forward calls: scaled_dot_product_attention, or softmax(q kᵀ) v by hand."""

import math
from typing import Any

import numpy as np

from ..._tensors import to_numpy
from .attention_inside import Attention, additive
from .findings import same
from .torch_calls import TorchCall, call_torch


def operations_of(call: TorchCall) -> list[Attention]:
    """In order, on the arguments of the call; what can't be read as one is left out."""
    watch = _watcher()
    call_torch(call.module, call.arguments, watcher=watch)
    return watch.found


def _watcher() -> Any:
    import torch
    from torch.nn import functional as F
    from torch.overrides import TorchFunctionMode

    products = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm}
    softmaxes = {torch.softmax, torch.Tensor.softmax, F.softmax}

    class Watcher(TorchFunctionMode):
        """Sees the functions that Python code calls in this thread, and changes none."""

        def __init__(self) -> None:
            super().__init__()
            self.found: list[Attention] = []
            self.products: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            self.open: list[tuple[np.ndarray, np.ndarray]] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            if func is F.scaled_dot_product_attention:
                self.found += _of_kernel(*args, **kwargs)
            elif func in products:
                left, right = (to_numpy(tensor.detach()) for tensor in args[:2])
                self._multiplied(left, right, to_numpy(result.detach()))
            elif func in softmaxes:
                self.open.append((to_numpy(args[0].detach()).copy(), to_numpy(result.detach()).copy()))
            return result

        def _multiplied(self, left: np.ndarray, right: np.ndarray, result: np.ndarray) -> None:
            for logits, weights in self.open:
                if left.shape == weights.shape and np.array_equal(left, weights, equal_nan=True):
                    self.found += _by_hand(self.products, logits, right)
                    self.open = [pair for pair in self.open if pair[1] is not weights]
                    return
            self.products.append((left.copy(), right.copy(), result.copy()))

    return Watcher()


def _of_kernel(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[Attention]:
    del dropout_p
    q, k, v = (to_numpy(tensor.detach()).copy() for tensor in (query, key, value))
    if q.ndim < 3:
        return []
    if enable_gqa:
        k, v = (array.repeat(q.shape[-3] // array.shape[-3], axis=-3) for array in (k, v))
    mask = None
    if attn_mask is not None:
        given = to_numpy(attn_mask.detach())
        mask = additive(~given if given.dtype == bool else given)
    if is_causal:
        mask = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), 0.0, -math.inf)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return [_attention(q, k, v, factor, mask)]


def _by_hand(products: list[tuple[np.ndarray, np.ndarray, np.ndarray]], logits: np.ndarray, v: np.ndarray) -> list:
    """The last product of the logits' shape that, scaled, is the logits wherever these aren't blocked."""
    for left, right, product in reversed(products):
        if product.shape != logits.shape or product.ndim < 3:
            continue
        open_places = logits > -1e4
        if not open_places.any():
            continue
        ratios = logits[open_places] / product[open_places]
        scale = float(np.median(ratios[np.isfinite(ratios)]))
        if not same([np.where(open_places, logits, 0.0)], [np.where(open_places, scale * product, 0.0)]):
            continue
        mask = None if open_places.all() else np.where(open_places, 0.0, -math.inf)
        return [_attention(left, right.swapaxes(-1, -2), v, scale, mask)]
    return []


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray | None) -> Attention:
    def finish(merged: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        return [merged, weights]

    return Attention(q, k, v, scale, mask, None, "zero", finish)
