"""Mistakes that attention ports make, each tried: which of them gives Flax's result from torch's q, k, v?"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .attention_inside import Attention, merge_heads, split_heads
from .findings import Cause, either, explains, same, telling

Hypothesis = tuple[str, str, Attention]
_ROWS = ("zero", "nan", "uniform")


def attention_cause(attention: Attention, ours: list[np.ndarray], recorded: dict[str, np.ndarray]) -> Cause | None:
    """The mistake that turns torch's call into Flax's result exactly; None if none of them does.

    Args:
        attention: torch's call.
        ours: what the Flax module returned for the same inputs.
        recorded: what its operation recorded (q, k, v, logits, weights); may be empty.
    """
    if (scale := _recorded_scale(attention, recorded)) is not None:
        return scale
    with np.errstate(all="ignore"):
        truth = attention.results()
        fitting = []
        for name, sentence, changed in _hypotheses(attention):
            # What a mask leaves empty is another convention of its own.
            all_rows = dict.fromkeys((changed.empty_row, *_ROWS)) if _any_empty(changed) else (changed.empty_row,)
            if any(explains(ours, replace(changed, empty_row=rows).results(), truth) for rows in all_rows):
                fitting.append(Cause(name, sentence))
        for name, sentence, results in _rearranged(attention):
            if explains(ours, results, truth):
                fitting.append(Cause(name, sentence))
    return either(fitting)


def inside_sentence(attention: Attention, recorded: dict[str, np.ndarray]) -> str | None:
    """Which of q, k, v, logits, weights are torch's and which are not."""
    pairs = {name: recorded[name] for name in ("q", "k", "v", "logits", "weights") if name in recorded}
    good, bad = [], []
    for name, ours in pairs.items():
        truth = getattr(attention, name)
        ours = np.moveaxis(ours, -2, -3) if name in "qkv" else ours
        if ours.shape != truth.shape:
            bad.append(f"{name} has another shape")
        elif same([ours], [truth]):
            good.append(name)
        else:
            bad.append(f"{name} differ by up to {np.nanmax(np.abs(ours - truth), initial=0.0):.2g}")
    parts = ([f"{', '.join(good)} agree"] if good else []) + bad
    return "inside: " + "; ".join(parts) if parts else None


def _recorded_scale(attention: Attention, recorded: dict[str, np.ndarray]) -> Cause | None:
    ours = recorded.get("logits")
    theirs = attention.logits
    if ours is None or ours.shape != theirs.shape or not theirs.any():
        return None
    factor = float((ours * theirs).sum() / (theirs * theirs).sum())
    if same([ours], [theirs]) or not same([ours], [factor * theirs]):
        return None
    return Cause(
        "scale", f"Flax's logits are {telling(factor, 1.0, 6)} times torch's: {_scale_words(attention, factor)}"
    )


def _scale_words(attention: Attention, factor: float) -> str:
    named = {value: name for name, value in _scales(attention).items()}
    for value, name in named.items():
        if math.isclose(value, attention.scale * factor, rel_tol=1e-9):
            return f"scaled by {name} instead of 1/√H"
    return f"scaled by {telling(attention.scale * factor, attention.scale, 6)} instead of {attention.scale:.6g}"


def _scales(a: Attention) -> dict[str, float]:
    N, H, S = a.q.shape[-3], a.q.shape[-1], a.k.shape[-2]
    E = N * H
    found = {"1 (no scale)": 1.0, "1/√E": E**-0.5, "1/H": 1 / H, "1/E": 1 / E, "√H": H**0.5}
    return {**found, "1/√S": S**-0.5 if S else 1.0, "1/√N": N**-0.5}


def _any_empty(a: Attention) -> bool:
    total = sum((part for part in (a.mask, a.padding) if part is not None), np.zeros((1, 1)))
    return bool(np.isneginf(total).all(axis=-1).any())


def _hypotheses(a: Attention) -> Iterator[Hypothesis]:
    yield from mask_hypotheses(a)
    for rows in _ROWS:
        if rows != a.empty_row:
            yield "empty row", f'queries with nothing to attend are "{rows}" in Flax', replace(a, empty_row=rows)
    for words, scale in _scales(a).items():
        yield "scale", f"Flax scales the logits by {words} instead of 1/√H", replace(a, scale=scale)
    for axis, over in ((-2, "queries"), (-3, "heads")):
        yield "softmax axis", f"Flax's softmax runs over {over} instead of keys", replace(a, softmax_axis=axis)
    for cap in (5.0, 10.0, 15.0, 20.0, 30.0, 50.0):
        yield "soft cap", f"Flax bounds the logits by soft_cap={cap:g}", replace(a, soft_cap=cap)
    if a.q.shape == a.k.shape:
        yield "q-k-v order", "Flax takes keys for queries and queries for keys", replace(a, q=a.k, k=a.q)
    for group in (g for g in range(2, a.k.shape[-3]) if a.k.shape[-3] % g == 0):
        if same([a.k], [a.k[..., ::group, :, :].repeat(group, axis=-3)]):
            k, v = (np.concatenate([x[..., ::group, :, :]] * group, axis=-3) for x in (a.k, a.v))
            yield "tiled groups", "Flax tiles the key heads of a group where torch repeats them", replace(a, k=k, v=v)


def mask_hypotheses(a: Attention) -> Iterator[Hypothesis]:
    """(name, sentence, changed) of every mistake with masks."""
    T, S = a.q.shape[-2], a.k.shape[-2]
    for names in (("mask",), ("padding",), ("mask", "padding")):
        if any(getattr(a, name) is None for name in names):
            continue
        shown = " and ".join({"mask": "attention mask", "padding": "padding mask"}[name] for name in names)
        parts = {name: getattr(a, name) for name in names}
        if all(np.isin(part, (0.0, -math.inf)).all() for part in parts.values()):
            inverted = {name: np.where(part == 0, -math.inf, 0.0) for name, part in parts.items()}
            yield "mask polarity", f"Flax attends where torch's {shown} blocks, and the reverse", replace(a, **inverted)
            number = {name: np.where(part == 0, 0.0, 1.0) for name, part in parts.items()}
            yield "mask kind", f"Flax adds the boolean {shown} to the logits as 0 and 1", replace(a, **number)
        yield "mask ignored", f"Flax computes without the {shown}", replace(a, **dict.fromkeys(names))
        if T == S:
            turned = {name: np.swapaxes(part, -1, -2) for name, part in parts.items()}
            yield "mask axis", f"Flax applies the {shown} to the other axis: queries for keys", replace(a, **turned)
    if a.mask is not None and a.mask.ndim == 4 and min(a.mask.shape[:2]) > 1:
        B, N = a.mask.shape[:2]
        other = a.mask.reshape(N, B, *a.mask.shape[2:]).swapaxes(0, 1)
        yield (
            "mask axis",
            "Flax reads the mask [B·N, T, S] with index n·B + b instead of b·N + n",
            replace(a, mask=other),
        )
    yield from _causal_hypotheses(a, T, S)


def _causal_hypotheses(a: Attention, T: int, S: int) -> Iterator[Hypothesis]:
    """Flax sees keys j ≤ i + offset."""
    offsets = list(dict.fromkeys((0, S - T, -1, 1, T - S)))
    causal = {offset: np.where(np.tri(T, S, offset, dtype=bool), 0.0, -math.inf) for offset in offsets}
    theirs = None if a.mask is None else np.broadcast_to(a.mask, (*a.mask.shape[:-2], T, S))
    torch_offset = next((o for o in offsets if theirs is not None and (theirs == causal[o]).all()), None)
    for offset, mask in causal.items():
        if offset == torch_offset:
            continue
        sees = f"Flax's query i sees keys j ≤ i {offset:+d}"
        if torch_offset is not None:
            yield "causal alignment", f"{sees}, torch's j ≤ i {torch_offset:+d}", replace(a, mask=mask)
        else:
            both = mask if a.mask is None else a.mask + mask
            yield "causal mask", f"{sees}, torch's sees every key that its mask leaves", replace(a, mask=both)


def _rearranged(a: Attention) -> Iterator[tuple[str, str, list[np.ndarray]]]:
    """Heads split or merged otherwise."""
    q, k, v = (merge_heads(x) for x in (a.q, a.k, a.v))
    N, width = a.q.shape[-3], q.shape[-1]
    if a.k.shape[-3] != N or v.shape[-1] != width:
        return
    for heads in (n for n in range(1, width + 1) if width % n == 0 and n != N):
        split = [split_heads(x, heads) for x in (q, k, v)]
        if a.mask is not None and a.mask.ndim > 3 and a.mask.shape[-3] > 1:
            continue
        changed = replace(a, q=split[0], k=split[1], v=split[2], scale=split[0].shape[-1] ** -0.5)
        yield "number of heads", f"Flax splits into {heads} heads, torch into {N}", changed.results()
    into, outof = ([_interleaved(x, n) for x in (q, k, v)] for n in (N, width // N))
    weights = a.weights
    for split in (into, outof):
        changed = replace(a, **{name: split_heads(x, N) for name, x in zip("qkv", split, strict=True)})
        merged = merge_heads(changed.weights @ changed.v)
        for output in (merged, _interleaved(merged, N), _interleaved(merged, width // N)):
            yield "interleaved heads", "Flax's heads are every N-th feature", a.finish(output, changed.weights)
    for parts in (N, width // N):
        output = _interleaved(merge_heads(weights @ a.v), parts)
        yield "interleaved heads", "Flax merges the heads interleaved", a.finish(output, weights)


def _interleaved(features: np.ndarray, parts: int) -> np.ndarray:
    """[…, parts · rest] read as [parts, rest], written as [rest, parts]."""
    split = features.reshape(*features.shape[:-1], parts, features.shape[-1] // parts)
    return split.swapaxes(-1, -2).reshape(features.shape)
