"""No time before parity: results of attention against a float64 computation of a part of it, in NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxattn.parity.criterion import gradient_scale, output_scale
from jaxattn.timing import ParityFailure

from .grid import Point

#: Largest |Δ|, relative to max(1, max|output|) for outputs and to the largest gradient for gradients; for float32.
BOUND = 2e-5
NAMES = ("output", "dq", "dk", "dv")


@dataclass(frozen=True)
class Part:
    """The exact results of one example and one kv head with all its query heads: output, dq [T, G, H], dk, dv [S, H].

    Without a cotangent only the output is there.
    """

    example: int
    kv_head: int
    results: tuple[np.ndarray, ...]

    def of(self, results: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same part of whole results, [B, T, N, H] and [B, S, K, H]."""
        group = self.results[0].shape[1]
        heads = slice(self.kv_head * group, (self.kv_head + 1) * group)
        picked = [heads, heads, self.kv_head, self.kv_head]
        return [np.asarray(whole)[self.example, :, part] for whole, part in zip(results, picked, strict=False)]


def exact_parts(point: Point, arrays: Sequence[np.ndarray], *, backward: bool) -> list[Part]:
    """The first head of the first example and a middle one of the last example, where grouping shows."""
    places = {(0, 0), (point.batch - 1, point.kv_heads // 2)}
    return [exact_part(arrays, place, point.mask(), backward=backward) for place in sorted(places)]


def exact_part(
    arrays: Sequence[np.ndarray], place: tuple[int, int], mask: np.ndarray | None, *, backward: bool
) -> Part:
    """In float64: softmax(q kᵀ / √H, where mask) v and its gradients; a query with nothing to attend gives 0.

    Args:
        arrays: q, k, v, cotangent [B, T, N, H], [B, S, K, H].
        place: example and kv head.
        mask: broadcastable to [G, T, S].
        backward: whether gradients are wanted.
    """
    example, kv_head = place
    group = arrays[0].shape[2] // arrays[1].shape[2]
    heads = slice(kv_head * group, (kv_head + 1) * group)
    q, cotangent = (array[example, :, heads].astype(np.float64).swapaxes(0, 1) for array in (arrays[0], arrays[3]))
    k, v = (array[example, :, kv_head].astype(np.float64) for array in arrays[1:3])
    scale = q.shape[-1] ** -0.5
    weights = q @ k.T * scale  # G T S
    if mask is not None:
        weights = np.where(mask, weights, -np.inf)
    largest = weights.max(axis=-1, keepdims=True)
    weights = np.exp(weights - np.where(np.isfinite(largest), largest, 0.0))
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    output = weights @ v
    if not backward:
        return Part(example, kv_head, (output.swapaxes(0, 1),))
    dv = np.einsum("gts,gth->sh", weights, cotangent, optimize=True)
    weights *= cotangent @ v.T - (cotangent * output).sum(axis=-1, keepdims=True)
    weights *= scale  # now the gradient of q kᵀ
    dk = np.einsum("gts,gth->sh", weights, q, optimize=True)
    return Part(example, kv_head, (output.swapaxes(0, 1), (weights @ k).swapaxes(0, 1), dk, dv))


def check(name: str, results: Sequence[np.ndarray], parts: Sequence[Part], *, bound: float = BOUND) -> dict[str, float]:
    """The largest relative error of each result.

    Raises:
        ParityFailure: one is above the bound, or NaN, or has another shape.
    """
    errors: dict[str, float] = {}
    for part in parts:
        scales = [output_scale(part.results[0]), *[gradient_scale(part.results[1:])] * 3]
        picked = part.of(results)
        if [array.shape for array in picked] != [array.shape for array in part.results]:
            raise ParityFailure(name, f"{name}: shapes {[array.shape for array in results]}")
        for label, ours, exact, scale in zip(NAMES, picked, part.results, scales, strict=False):
            error = float(np.max(np.abs(ours.astype(np.float64) - exact))) / scale
            if not error <= bound:  # NaN fails too
                raise ParityFailure(name, f"{name}: {label} differs by {error:.1e}, allowed {bound:.0e}")
            errors[label] = max(errors.get(label, 0.0), error)
    return errors
