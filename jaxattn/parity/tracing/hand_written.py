"""Attention in a forward written by hand: torch's own call against what Flax's dot_product_attention was given."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .attention_causes import mask_hypotheses
from .attention_inside import Attention, merge_heads
from .findings import Cause, either, same
from .rotary_causes import rotary_causes
from .torch_calls import TorchCall
from .torch_operations import operations_of

Recorded = dict[str, np.ndarray]


def hand_written_cause(call: TorchCall, inside: list[np.ndarray], recorded: Recorded) -> Cause | None:
    """What Flax hands to its one attention operation otherwise than torch to its own; None where nothing explains it.

    Args:
        call: torch's, of the module with that forward.
        inside: what parts of it return: queries and keys before they were rotated are among them.
        recorded: what Flax's operation was given and made, by name.
    """
    if not {"q", "k", "v", "logits", "weights"} <= recorded.keys():
        return None
    operations = operations_of(call)
    if len(operations) != 1:
        return None  # which of them Flax's is, nobody says
    mine = {name: np.moveaxis(recorded[name], -2, -3) if name in "qkv" else recorded[name] for name in recorded}
    with np.errstate(all="ignore"):
        return either(list(_causes(operations[0], mine, inside)))


def _causes(theirs: Attention, mine: Recorded, inside: list[np.ndarray]) -> Iterator[Cause]:
    """Every cause that gives what Flax's operation has."""
    equal = {name: same([mine[name]], [getattr(theirs, name)]) for name in "qkv"}
    if all(equal.values()):
        yield from _of_logits(theirs, mine)
    if same([mine["q"]], [theirs.k]) and same([mine["k"]], [theirs.q]) and not equal["q"]:
        yield Cause("q-k-v order", "dot_product_attention gets torch's keys as q and its queries as k")
    yield from _of_heads(theirs, mine, equal)
    if equal["v"] and not (equal["q"] and equal["k"]):
        yield from rotary_causes(theirs, mine, inside)


def _of_logits(theirs: Attention, mine: Recorded) -> Iterator[Cause]:
    logits = theirs.logits
    if not same([mine["logits"]], [logits]):
        factor = float((mine["logits"] * logits).sum() / (logits * logits).sum())
        if same([mine["logits"]], [factor * logits]):
            yield Cause(
                "scale",
                f"dot_product_attention scales the logits by {theirs.scale * factor:.6g}, torch by {theirs.scale:.6g}",
            )
        return
    if same([mine["weights"]], [theirs.weights]):
        return
    for name, sentence, changed in mask_hypotheses(theirs):
        for weights in _with_empty_rows(changed):
            if same([mine["weights"]], [weights]):
                yield Cause(name, f"at dot_product_attention, {sentence}")
                break


def _with_empty_rows(changed: Attention) -> Iterator[np.ndarray]:
    """What a mask leaves empty is another convention of its own."""
    weights = changed.weights
    yield weights
    empty = ~np.isfinite(weights).all(axis=-1, keepdims=True) | ~weights.any(axis=-1, keepdims=True)
    if empty.any():
        yield np.where(empty, 0.0, weights)
        yield np.where(empty, 1 / weights.shape[-1], weights)


def _of_heads(theirs: Attention, mine: Recorded, equal: dict[str, bool]) -> Iterator[Cause]:
    """q, k and v with one other way of splitting."""
    if any(equal.values()) and theirs.q.shape[-3] > 1:
        return
    for sentence, split in _SPLITS.items():
        if all(mine[name].size == getattr(theirs, name).size for name in "qkv"):
            split_otherwise = [split(getattr(theirs, name), mine[name].shape) for name in "qkv"]
            if all(other is not None for other in split_otherwise) and same([mine[n] for n in "qkv"], split_otherwise):
                yield Cause("heads split", f"what dot_product_attention gets is split into heads otherwise: {sentence}")


def _features_first(heads: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """[*B, N, T, H] read as [*B, T, H, N]: every N-th feature is one head's."""
    if heads.shape != shape:
        return None
    *batch, N, T, H = heads.shape
    return np.moveaxis(merge_heads(heads).reshape(*batch, T, H, N), -1, -3)


def _without_transpose(heads: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """[*B, T, N·H] reshaped to [*B, N, T, H] at once."""
    return merge_heads(heads).reshape(heads.shape) if heads.shape == shape else None


def _other_number(heads: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Into another number of heads."""
    if heads.shape[-3] == shape[-3] or heads.shape[-2] != shape[-2]:
        return None
    *batch, N, T, H = shape
    return np.moveaxis(merge_heads(heads).reshape(*batch, T, N, H), -2, -3)


_SPLITS: dict[str, Any] = {
    "every N-th feature is one head's, in torch a head's features are neighbours": _features_first,
    "reshaped to heads without exchanging axes, which mixes positions and heads": _without_transpose,
    "into another number of heads": _other_number,
}
