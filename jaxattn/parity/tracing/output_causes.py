"""Mistakes that two results show by themselves: an epsilon, an offset of positions, a factor, dropout."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..._tensors import is_tensor, to_numpy
from ..arguments import is_floating
from .findings import Cause, either, same
from .torch_calls import TorchCall

#: What norms call their epsilon.
_EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps")
_NARROW = (np.float16, ml_dtypes.bfloat16, np.float32)


def output_cause(call: TorchCall, ours: np.ndarray) -> Cause | None:
    """What turns torch's first output of this call into Flax's; None if nothing that is known does.

    Args:
        call: torch's.
        ours: Flax's first output for the same arguments.
    """
    truth = call.outputs.arrays[0]
    if truth.shape != ours.shape or not truth.size or not is_floating(truth):
        return None
    first = next((array for array in call.arguments.arrays if is_floating(array) and array.shape == truth.shape), None)
    tries: list[Callable[[], Cause | None]] = [
        lambda: dropout_cause(truth, ours),
        lambda: _epsilon(call, first, ours),
        lambda: _narrow(ours, truth),
        lambda: _residual(first, ours, truth),
        lambda: _position_offset(first, ours, truth),
        lambda: _factor(ours, truth),
        lambda: _normalised(ours, truth),
        lambda: _swapped(ours, truth),
        lambda: _same_vector(call, ours, truth),
    ]
    if same([ours], [truth]):
        return None  # what is tried here would fit because it changes nothing
    with np.errstate(all="ignore"):
        return either([cause for attempt in tries if (cause := attempt()) is not None])


def dropout_cause(truth: np.ndarray, ours: np.ndarray) -> Cause | None:
    """Some places are zero, all others the same factor above 1 times torch's."""
    if truth.shape != ours.shape:
        return None
    zero = (ours == 0) & (truth != 0)
    kept = ~zero & (truth != 0)
    if not zero.any() or not kept.any():
        return None
    factor = float(np.median(ours[kept] / truth[kept]))
    if factor <= 1 or not np.allclose(ours[kept], factor * truth[kept], rtol=1e-5, atol=0):
        return None
    rate = 1 - 1 / factor
    return Cause(
        "dropout left on",
        f"{zero.sum() / zero.size:.0%} of Flax's values are zero and the others {factor:.4g} times torch's, "
        f"as dropout with rate {rate:.3g} makes them",
    )


def _epsilon(call: TorchCall, inputs: np.ndarray | None, ours: np.ndarray) -> Cause | None:
    """Flax's epsilon, solved from its result: √(moment + ε) = centred / normalised."""
    module, truth = call.module, call.outputs.arrays[0]
    told = next((value for name in _EPSILONS if isinstance(value := getattr(module, name, None), float)), None)
    if inputs is None or (told is None and not _norm_like(module)):
        return None
    width = inputs.shape[-1]
    for centred in (inputs - inputs.mean(axis=-1, keepdims=True), inputs):
        moment = (centred**2).mean(axis=-1, keepdims=True)
        theirs = _solved(centred, moment, module, truth) if told is None else told
        plain = centred / np.sqrt(moment + theirs)
        # scale and bias from torch's own result, feature by feature: any two rows determine them.
        scale, bias = _affine(plain.reshape(-1, width), truth.reshape(-1, width))
        if not same([plain * scale + bias], [truth]):
            continue
        normalised = (ours - bias) / scale
        usable = np.isfinite(normalised) & (np.abs(normalised) > 1e-3)
        solved = float(np.median(((centred / normalised) ** 2 - moment)[usable])) if usable.any() else np.nan
        for epsilon in (_rounded(solved), solved):
            same_words = f"{epsilon:.3g}" == f"{theirs:.3g}"
            if not same_words and same([centred / np.sqrt(moment + epsilon) * scale + bias], [ours]):
                return Cause("epsilon", f"Flax's result has epsilon {epsilon:.3g}, torch's is {theirs:.3g}")
        unbiased = moment * width / max(width - 1, 1)
        if same([centred / np.sqrt(unbiased + theirs) * scale + bias], [ours]):
            return Cause("variance", "Flax divides the squares by D − 1, torch by D")
    return None


def _norm_like(module: Any) -> bool:
    """One parameter for each feature, or none, and a constant in the code."""
    return all(parameter.ndim == 1 for parameter in module.parameters())


def _solved(centred: np.ndarray, moment: np.ndarray, module: Any, truth: np.ndarray) -> float:
    """torch's own epsilon, of a norm that keeps it in its code: from its result and its weight."""
    weight = next((to_numpy(parameter.detach()) for parameter in module.parameters()), 1.0)
    normalised = truth / weight
    usable = np.isfinite(normalised) & (np.abs(normalised) > 1e-3)
    return _rounded(float(np.median(((centred / normalised) ** 2 - moment)[usable]))) if usable.any() else np.nan


def _affine(plain: np.ndarray, result: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """scale and bias of each feature in result = plain · scale + bias."""
    middle, mean = plain.mean(axis=0), result.mean(axis=0)
    spread = ((plain - middle) ** 2).sum(axis=0)
    scale = ((plain - middle) * (result - mean)).sum(axis=0) / np.where(spread > 0, spread, 1)
    return scale, mean - scale * middle


def _rounded(value: float) -> float:
    """To two digits: constants are written so."""
    return float(f"{value:.1e}")


def _narrow(ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    for dtype in _NARROW:
        if np.array_equal(ours, ours.astype(dtype).astype(np.float64)) and np.any(
            truth != truth.astype(dtype).astype(np.float64)
        ):
            step = float(ml_dtypes.finfo(dtype).eps)
            if np.max(np.abs(ours - truth)) <= 64 * step * max(1.0, np.max(np.abs(truth))):
                return Cause("precision", f"every value of Flax's is a {np.dtype(dtype).name} number, in float64 too")
    return None


def _residual(inputs: np.ndarray | None, ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    if inputs is None:
        return None
    if same([ours], [truth - inputs]):
        return Cause("residual missing", "Flax's result is torch's without the input that is added")
    if same([ours], [truth + inputs]):
        return Cause("residual added", "Flax's result is torch's with the input added")
    return None


def _position_offset(inputs: np.ndarray | None, ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    """Flax's row t is torch's row t + offset, in the output or in what is added to the input."""
    if truth.ndim < 2 or truth.shape[-2] < 3:
        return None
    for base in (0.0, inputs):
        if base is None:
            continue
        mine, yours = ours - base, truth - base
        for offset in (1, -1, 2, -2):
            late, early = (mine, yours) if offset > 0 else (yours, mine)
            step = abs(offset)
            if same([late[..., :-step, :]], [early[..., step:, :]]):
                return Cause("position offset", f"Flax's position t is torch's position t {offset:+d}")
    return None


def _factor(ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    total = (truth * truth).sum()
    factor = float((ours * truth).sum() / total) if total else 0.0
    if factor and same([ours], [factor * truth]):
        return Cause("scale", f"Flax's result is {factor:.6g} times torch's")
    if not ours.any():
        return Cause("zeroed", "Flax's result is all zeros")
    return None


def _normalised(ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    raised = np.exp(truth - truth.max(axis=-1, keepdims=True))
    total = raised.sum(axis=-1, keepdims=True)
    for name, values in (("softmax", raised / total), ("log-softmax", np.log(raised / total))):
        if same([ours], [values]):
            return Cause("softmax added", f"Flax's result is the {name} of torch's")
    return None


def _swapped(ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    if truth.ndim >= 3 and truth.shape[0] == truth.shape[1] and same([ours], [truth.swapaxes(0, 1)]):
        return Cause("batch_first", "Flax's result has the first two axes exchanged")
    return None


def _same_vector(call: TorchCall, ours: np.ndarray, truth: np.ndarray) -> Cause | None:
    rows = (ours - truth).reshape(-1, truth.shape[-1])
    if len(rows) < 2 or not same([rows], [np.broadcast_to(rows[:1], rows.shape)]):
        return None
    bias = getattr(call.module, "bias", None)
    if is_tensor(bias) and same([-rows[0]], [to_numpy(bias)]):
        return Cause("bias dropped", "Flax's result is torch's without `bias`")
    return Cause("bias", "Flax's result differs by the same vector at every position, as a bias does")
