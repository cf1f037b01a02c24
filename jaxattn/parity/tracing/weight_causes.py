"""How weights differ: which mistake of a conversion makes Flax's tensors of torch's."""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ..._checks import shape_text
from ..criterion import largest
from .findings import Cause, Finding, either, listed, telling
from .matched_weights import Weights

Tensors = Mapping[str, np.ndarray]
#: Of float32: what rounding on the way leaves, and no mistake of order or place.
FEW_ULPS = 4.0
#: How well a factor must fit, relative to each element.
FACTOR_FIT = 1e-5
#: What a projection may be called → q, k or v.
_ROLES = {
    spelling: role
    for role, word in (("q", "query"), ("k", "key"), ("v", "value"))
    for spelling in (word, f"W{role}", f"W_{role}", f"{role}_proj", f"{role}_proj_weight")
}


def weight_findings(torch_module: Any, weights: Weights, paired: Mapping[str, str]) -> list[Finding]:
    """One finding for each tensor of the state dicts that differs, under torch's names."""
    theirs, ours = weights.theirs, weights.ours
    buffers = {name for name, _ in torch_module.named_buffers(remove_duplicate=False)}
    tied, heads = _tied(torch_module), _heads(torch_module)
    findings = []
    for name, tensor in theirs.items():
        owner, cause = _owner(name), None
        if name in ours:
            cause = _difference(name, tensor, ours[name], theirs, ours, tied.get(name, []), heads.get(owner, 1))
        elif owner in paired and name not in buffers and not any(other in ours for other in tied.get(name, [])):
            cause = _absent(name)
        if cause is not None:
            findings.append(Finding("weights", owner, cause))
    return findings


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _absent(name: str) -> Cause:
    kind = "bias dropped" if name.endswith("bias") else "missing weight"
    return Cause(kind, f"`{name}` is in torch only")


def _tied(torch_module: Any) -> dict[str, list[str]]:
    """Names of one parameter under another name."""
    groups: dict[int, list[str]] = {}
    for name, parameter in torch_module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {name: [other for other in group if other != name] for group in groups.values() for name in group}


def _heads(torch_module: Any) -> dict[str, int]:
    """Number of heads of the attention module that a module is, or belongs to."""
    found = {}
    for path, module in torch_module.named_modules():
        heads = getattr(module, "num_heads", None)
        if isinstance(heads, int):
            found[path] = heads
        elif _owner(path) in found and path:
            found[path] = found[_owner(path)]
    return found


def _difference(
    name: str, theirs: np.ndarray, ours: np.ndarray, all_theirs: Tensors, all_ours: Tensors, tied: list[str], heads: int
) -> Cause | None:
    if theirs.shape != ours.shape:
        kind = "transposed weight" if theirs.shape == ours.shape[::-1] else "shape"
        return Cause(kind, f"`{name}` is {shape_text(theirs.shape)} in torch, {shape_text(ours.shape)} in Flax")
    if theirs.dtype == ours.dtype and theirs.tobytes() == ours.tobytes():
        return None
    values, truth = ours.astype(np.float64), theirs.astype(np.float64)
    if np.array_equal(values, truth, equal_nan=True):
        return None if theirs.dtype == ours.dtype else _dtype(name, theirs, ours)
    for other in tied:
        if other in all_ours and np.array_equal(all_ours[other], all_theirs[other]):
            return Cause(
                "stale tie", f"`{name}` and `{other}` are one tensor in torch; Flax has another one for `{name}`"
            )
    fitting = [Cause(kind, sentence) for kind, sentence in _explanations(name, values, truth, all_theirs, heads)]
    if (cause := either(fitting)) is not None:
        return Cause(cause.name, f"`{name}` {cause.sentence}")
    differing = int((values != truth).sum())
    apart = f"by up to {np.nanmax(np.abs(values - truth)):.2g}"
    return Cause("other weights", f"`{name}` differs in {differing} of {values.size} elements, {apart}")


def _dtype(name: str, theirs: np.ndarray, ours: np.ndarray) -> Cause:
    return Cause("precision", f"`{name}` is {theirs.dtype.name} in torch, {ours.dtype.name} in Flax")


def _explanations(
    name: str, ours: np.ndarray, theirs: np.ndarray, all_theirs: Tensors, heads: int
) -> Iterator[tuple[str, str]]:
    """(cause, sentence) of every explanation that fits exactly, the simplest first."""
    if np.isnan(ours).any() and not np.isnan(theirs).any():
        yield "NaN", f"is NaN in Flax at {int(np.isnan(ours).sum())} of {ours.size} places"
    if not ours.any():
        yield "zeroed", f"is all zeros in Flax, up to {largest(theirs):.2g} in torch"
    yield from _rounded(ours, theirs)
    blocks = 3 if "in_proj" in name else 1
    if ours.ndim == 2 and ours.shape[0] == blocks * ours.shape[1]:
        if np.array_equal(_blocks(ours, blocks), _blocks(theirs, blocks).swapaxes(-1, -2)):
            yield "transposed weight", "is equal transposed: Flax holds (in, out) where torch holds (out, in)"
    elsewhere = list(_other_tensor(name, ours, theirs, all_theirs, blocks))
    yield from elsewhere
    if any(kind == "q-k-v order" for kind, _ in elsewhere):
        return  # other words for the same order of rows would fit as well
    for axis, what in enumerate(("rows", "columns")[: ours.ndim]):
        parts = blocks if axis == 0 else 1
        if found := _reordered(ours.swapaxes(0, axis), theirs.swapaxes(0, axis), heads, parts):
            yield found[0], f"{found[1]} ({what})"
    factor = _factor(ours, theirs)
    if factor is not None:
        yield ("sign" if factor == -1 else "scaled weight"), f"is {telling(factor, 1.0, 6)} times torch's in Flax"


def _blocks(array: np.ndarray, count: int) -> np.ndarray:
    return array.reshape(count, array.shape[0] // count, *array.shape[1:])


def _rounded(ours: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[str, str]]:
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        with np.errstate(over="ignore"):
            if np.array_equal(ours, theirs.astype(dtype).astype(np.float64)):
                yield "precision", f"was rounded to {np.dtype(dtype).name} in Flax"
                return
    step = np.spacing(np.abs(theirs).astype(np.float32)).astype(np.float64)
    apart = np.abs(ours - theirs) / step
    if np.nanmax(apart, initial=0.0) <= FEW_ULPS:
        yield (
            "rounded weight",
            f"differs by up to {apart.max():.2g} ulp of float32, in {int((apart > 0).sum())} of {ours.size}",
        )


def _other_tensor(
    name: str, ours: np.ndarray, theirs: np.ndarray, all_theirs: Tensors, blocks: int
) -> Iterator[tuple[str, str]]:
    if blocks == 3 and (order := _permutation(_blocks(ours, 3), _blocks(theirs, 3))) is not None:
        yield "q-k-v order", f"holds {', '.join('qkv'[i] for i in order)} in Flax where torch holds q, k, v"
    same = [other for other, tensor in all_theirs.items() if other != name and np.array_equal(tensor, ours)]
    siblings = [
        other for other in same if _role(other) and _role(name) and _owner(_owner(other)) == _owner(_owner(name))
    ]
    if siblings:
        yield "q-k-v order", f"holds torch's {listed(siblings)}"
    elif same:
        yield "wrong tensor", f"holds torch's {listed(same)}"


def _role(name: str) -> str | None:
    """q, k or v, of a projection."""
    return next((_ROLES[part] for part in reversed(name.split(".")) if part in _ROLES), None)


def _permutation(ours: np.ndarray, theirs: np.ndarray) -> list[int] | None:
    """Which of torch's parts each of Flax's parts is; None unless each is one."""
    theirs_by_bytes: dict[bytes, list[int]] = {}
    for index, part in enumerate(theirs):
        theirs_by_bytes.setdefault(part.tobytes(), []).append(index)
    order = [theirs_by_bytes.get(part.tobytes(), [-1])[0] for part in ours]
    return None if -1 in order or order == list(range(len(order))) else order


def _reordered(ours: np.ndarray, theirs: np.ndarray, heads: int, parts: int) -> tuple[str, str] | None:
    """The order along the first axis, in each of `parts` blocks."""
    if heads < 2 or ours.shape[0] % (parts * heads):
        return None
    ours, theirs = (np.ascontiguousarray(_blocks(array, parts)) for array in (ours, theirs))
    split = [np.stack([_blocks(block, heads) for block in array]) for array in (ours, theirs)]
    mine, yours = (array.reshape(parts * heads, *array.shape[2:]) for array in split)
    if _tiled(split[0], split[1]):
        return "tiled groups", "holds each group's heads tiled in Flax (0, 1, 0, 1), repeated in torch (0, 0, 1, 1)"
    order = _permutation(mine, yours)
    if order is not None:
        return "head order", f"holds torch's heads in the order {', '.join(str(i) for i in order[:heads])}"
    into = np.stack(
        [block.reshape(heads, -1, *block.shape[1:]).swapaxes(0, 1).reshape(block.shape) for block in theirs]
    )
    back = np.stack(
        [block.reshape(-1, heads, *block.shape[1:]).swapaxes(0, 1).reshape(block.shape) for block in theirs]
    )
    if np.array_equal(ours, into) or np.array_equal(ours, back):
        return "interleaved heads", f"holds the {heads} heads interleaved: one feature of every head after the other"
    rows = _permutation(ours.reshape(-1, *ours.shape[2:]), theirs.reshape(-1, *theirs.shape[2:]))
    return (
        None if rows is None or len(set(rows)) < len(rows) else ("permuted features", "holds torch's in another order")
    )


def _tiled(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """[parts, N, …]: torch's heads come in equal neighbours, and Flax's are the same heads tiled."""
    heads = theirs.shape[1]
    for group in (g for g in range(2, heads) if heads % g == 0):
        base = theirs[:, ::group]
        if np.array_equal(theirs, base.repeat(group, axis=1)) and np.array_equal(
            ours, np.concatenate([base] * group, axis=1)
        ):
            return True
    return False


def _factor(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """c where Flax's tensor is c times torch's."""
    place = np.unravel_index(np.argmax(np.abs(theirs)), theirs.shape)
    if theirs[place] == 0:
        return None
    factor = float(ours[place] / theirs[place])
    fits = np.allclose(ours, factor * theirs, rtol=FACTOR_FIT, atol=0)
    return (
        factor if fits and factor and abs(factor - 1) > 10 * FACTOR_FIT else None
    )  # nearer to 1 noise would fit as well
