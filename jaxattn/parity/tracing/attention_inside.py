"""Inside an attention call of torch, where no hook looks: q, k, v, logits and weights, recomputed in NumPy."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._tensors import to_numpy
from ...core.mask_arrays import from_causal_bias
from .torch_calls import TorchCall


@dataclass(frozen=True)
class Attention:
    """One attention call as a formula that can be changed: `dataclasses.replace` makes a hypothesis of it.

    Attributes:
        q: [*B, N, T, H].
        k: [*B, N, S, H].
        v: [*B, N, S, V].
        scale: factor of the logits.
        mask: added to the logits, broadcastable to [*B, N, T, S]; −inf where blocked.
        padding: likewise, of a mask over keys.
        empty_row: weights of a query with nothing to attend: "nan", "zero" or "uniform".
        finish: (merged heads [*B, T, N·V], weights) → what the module returns.
        projection: the output projection, where no hook sees its call.
        soft_cap: bound of the logits.
        softmax_axis: of the weights.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    mask: np.ndarray | None
    padding: np.ndarray | None
    empty_row: str
    finish: Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
    projection: Callable[[np.ndarray], np.ndarray] | None = None
    soft_cap: float | None = None
    softmax_axis: int = -1

    @property
    def logits(self) -> np.ndarray:
        """Scaled, before the masks."""
        logits = self.q @ self.k.swapaxes(-1, -2) * self.scale
        return logits if self.soft_cap is None else self.soft_cap * np.tanh(logits / self.soft_cap)

    @property
    def weights(self) -> np.ndarray:
        """Before dropout, [*B, N, T, S]."""
        logits = self.logits
        for part in (self.mask, self.padding):
            logits = logits if part is None else logits + part
        empty = np.isneginf(logits).all(axis=self.softmax_axis, keepdims=True) & (logits.shape[self.softmax_axis] > 0)
        logits = np.where(empty, 0.0, logits)
        with np.errstate(invalid="ignore"):
            raised = np.exp(logits - logits.max(axis=self.softmax_axis, keepdims=True, initial=-math.inf))
            weights = raised / raised.sum(axis=self.softmax_axis, keepdims=True)
        if self.empty_row == "uniform":
            return weights
        return np.where(empty, math.nan if self.empty_row == "nan" else 0.0, weights)

    @property
    def merged(self) -> np.ndarray:
        """Weighted values, heads side by side: [*B, T, N·V]."""
        return merge_heads(self.weights @ self.v)

    def results(self) -> list[np.ndarray]:
        """What the module returns."""
        weights = self.weights
        return self.finish(merge_heads(weights @ self.v), weights)


def split_heads(features: np.ndarray, num_heads: int) -> np.ndarray:
    """[*B, T, N·H] → [*B, N, T, H]."""
    *batch, length, width = features.shape
    return np.moveaxis(features.reshape(*batch, length, num_heads, width // num_heads), -2, -3)


def merge_heads(heads: np.ndarray) -> np.ndarray:
    """[*B, N, T, V] → [*B, T, N·V]."""
    heads = np.moveaxis(heads, -3, -2)
    return heads.reshape(*heads.shape[:-2], heads.shape[-2] * heads.shape[-1])


def attention_inside(call: TorchCall, calls: Sequence[TorchCall]) -> Attention | None:
    """What a call of nn.MultiheadAttention, or of a module made of projections called q, k, v, computed inside.

    Args:
        call: of the attention module.
        calls: all of the run; those made inside `call` are its projections.
    """
    import torch

    if type(call.module) is torch.nn.MultiheadAttention:
        return _torch_attention(call)
    inside = {part.path.rpartition(".")[2]: part for part in calls[call.begin :] if _is_child(part.path, call.path)}
    return _projected_attention(call, inside)


def _is_child(path: str, parent: str) -> bool:
    return path != parent and path.rpartition(".")[0] == parent


def given(call: TorchCall) -> dict[str, Any]:
    """The arguments by name, defaults included."""
    args, kwargs = call.arguments.call_with(call.arguments.arrays)
    bound = inspect.signature(call.module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _torch_attention(call: TorchCall) -> Attention:
    module, named = call.module, given(call)
    query, key, value = (np.asarray(named[name]) for name in ("query", "key", "value"))
    batched, N = query.ndim == 3, module.num_heads
    if batched and not module.batch_first:
        query, key, value = (inputs.swapaxes(0, 1) for inputs in (query, key, value))
    parts = {name: to_numpy(tensor.detach()) for name, tensor in module.named_parameters()}
    q, k, v = (
        inputs @ weight.T + bias
        for inputs, weight, bias in zip((query, key, value), *_projections(parts, module.embed_dim), strict=True)
    )
    S = k.shape[-2]
    if "bias_k" in parts:
        k, v = (_appended(x, parts[name].reshape(-1)) for x, name in ((k, "bias_k"), (v, "bias_v")))
    if module.add_zero_attn:
        k, v = (_appended(x, np.zeros(module.embed_dim)) for x in (k, v))
    mask, padding = _torch_masks(named, query.shape[:-2], N, k.shape[-2] - S, (query.shape[-2], k.shape[-2]))

    def project(merged: np.ndarray) -> np.ndarray:
        return merged @ parts["out_proj.weight"].T + parts.get("out_proj.bias", 0.0)

    def finish(merged: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        output = project(merged)
        output = output.swapaxes(0, 1) if batched and not module.batch_first else output
        if not named["need_weights"]:
            return [output]
        return [output, weights.mean(axis=-3) if named["average_attn_weights"] else weights]

    return Attention(
        *(split_heads(x, N) for x in (q, k, v)),
        scale=1 / math.sqrt(module.embed_dim // N),
        mask=mask,
        padding=padding,
        empty_row="nan" if named["need_weights"] else "zero",
        finish=finish,
        projection=project,
    )


def _projections(parts: dict[str, np.ndarray], width: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(weights, biases) of q, k, v."""
    packed = "in_proj_weight" in parts
    weights = np.split(parts["in_proj_weight"], 3) if packed else [parts[f"{name}_proj_weight"] for name in "qkv"]
    return weights, np.split(parts.get("in_proj_bias", np.zeros(3 * width)), 3)


def _appended(sequence: np.ndarray, row: np.ndarray) -> np.ndarray:
    return np.concatenate([sequence, np.broadcast_to(row, (*sequence.shape[:-2], 1, row.size))], axis=-2)


def _torch_masks(
    named: dict[str, Any], batch: tuple[int, ...], N: int, appended: int, lengths: tuple[int, int]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(attn_mask, key_padding_mask), both added to logits [*B, N, T, S + appended]."""
    mask, padding = named["attn_mask"], named["key_padding_mask"]
    if named["is_causal"] and padding is None and not named["need_weights"]:
        # torch then drops attn_mask and lets its kernel hide what is above the diagonal, appended columns too.
        return np.where(np.tri(*lengths, dtype=bool), 0.0, -math.inf), None
    if mask is not None:
        mask = _extended(additive(mask), appended)
        mask = mask.reshape(*batch, N, *mask.shape[-2:]) if mask.ndim == 3 else mask
    return mask, None if padding is None else _extended(additive(padding), appended)[..., None, None, :]


def additive(mask: Any) -> np.ndarray:
    """torch's boolean masks (True = blocked) as −inf; floating ones as they are."""
    mask = np.asarray(from_causal_bias(mask, means_blocked=True))
    return np.where(mask, -math.inf, 0.0) if mask.dtype == bool else mask.astype(np.float64)


def _extended(mask: np.ndarray, columns: int) -> np.ndarray:
    return np.concatenate([mask, np.zeros((*mask.shape[:-1], columns))], axis=-1)


_WORDS = {"q": "query", "k": "key", "v": "value"}
_NAMES = {
    role: [f"W{role}", f"W_{role}", f"{role}_proj", *([_WORDS[role]] if role in _WORDS else [])] for role in "qkvo"
}


def _projected_attention(call: TorchCall, inside: dict[str, TorchCall]) -> Attention | None:
    """Of a module with projections Wq, W_q or q_proj, and so on, whose mask says what may be attended."""
    roles = {role: next((inside[name] for name in _NAMES[role] if name in inside), None) for role in "qkvo"}
    q, k, v = (None if (part := roles[role]) is None else part.outputs.arrays[0] for role in "qkv")
    if q is None or k is None or v is None:
        return None
    N, named = getattr(call.module, "num_heads", getattr(call.module, "num_attention_heads", 1)), given(call)
    mask, shapes = named.get("mask"), call.outputs.shapes
    added = named.get("attention_mask")  # transformers' own is floating, and added
    if mask is not None:
        mask = np.where(np.asarray(from_causal_bias(mask)) != 0, 0.0, -math.inf)
        mask = mask[..., None, :, :] if 2 < mask.ndim < q.ndim + 1 else mask
    projection = roles["o"]

    def finish(merged: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        if projection is not None:
            parts = {name: to_numpy(tensor.detach()) for name, tensor in projection.module.named_parameters()}
            merged = merged @ parts["weight"].T + parts.get("bias", 0.0)
        if len(shapes) < 2:
            return [merged]
        return [merged, weights[..., 0, :, :] if N == 1 and len(shapes[1]) == q.ndim else weights]

    heads = [split_heads(x, N) for x in (q, k, v)]
    return Attention(
        *heads,
        scale=1 / math.sqrt(heads[0].shape[-1]),
        mask=mask if added is None else additive(added),
        padding=None,
        empty_row="uniform",
        finish=finish,
    )
