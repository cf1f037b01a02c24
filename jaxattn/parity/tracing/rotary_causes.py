"""Rotated queries and keys: in which layout, from which base, from which position on each side rotates."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .attention_inside import Attention, split_heads
from .findings import Cause, same

#: Of the largest value: tables of angles are often made in float32.
_TABLES = 1e-5


@dataclass(frozen=True)
class Rotation:
    """Pair i of position t is turned by sign · (t + offset) · base^(−2i/H)."""

    layout: str
    base: float
    offset: int
    sign: int


def rotary_causes(theirs: Attention, mine: dict[str, np.ndarray], inside: list[np.ndarray]) -> Iterator[Cause]:
    """What differs between both sides' rotation of one projection; nothing where a side isn't one."""
    for name in "qk":
        truth = getattr(theirs, name)
        if truth.shape != mine[name].shape or same([mine[name]], [truth]):
            continue
        for before in _before(inside, truth.shape):
            # A tensor that both sides don't rotate into their own is another one's projection.
            expected, found = _rotations(before, truth), _rotations(before, mine[name])
            for a in expected:
                for b in found:
                    yield from _differences(a, b)
            if expected and same([mine[name]], [before]):
                yield Cause("rotary missing", "Flax doesn't rotate the queries or keys that torch rotates")


def _before(inside: list[np.ndarray], shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    N, T, H = shape[-3:]
    for array in inside:
        if array.shape == (*shape[:-3], T, N * H):
            yield split_heads(array, N)


def _differences(theirs: Rotation, mine: Rotation) -> Iterator[Cause]:
    words = [
        f"{what} {getattr(mine, what)} in Flax, {getattr(theirs, what)} in torch"
        for what in ("layout", "base", "offset", "sign")
        if getattr(mine, what) != getattr(theirs, what)
    ]
    if words:
        kind = words[0].split()[0]
        yield Cause(
            f"rotary {kind}", f"the queries or keys of dot_product_attention are rotated with {'; '.join(words)}"
        )


def _rotations(before: np.ndarray, after: np.ndarray) -> list[Rotation]:
    """Every rotation that makes one of the other: solved from the first two positions, then tried in full."""
    T, H = before.shape[-2:]
    if T < 2 or H < 4 or H % 2:
        return []
    found = []
    for layout in ("halves", "interleaved"):
        source, target = _complex(before, layout), _complex(after, layout)
        angles = np.angle((target / source).reshape(-1, T, H // 2)[0])
        step = np.angle(np.exp(1j * (angles[1] - angles[0])))
        sign = 1 if step[0] > 0 else -1
        base = _written(float(abs(step[1]) ** (-H / 2)))
        frequencies = base ** (-np.arange(H // 2) * 2 / H)
        for offset in range(-2, 3):
            turns = np.exp(1j * sign * (np.arange(T) + offset)[:, None] * frequencies)
            if float(np.max(np.abs(source * turns - target))) <= _TABLES * float(np.max(np.abs(target))):
                found.append(Rotation(layout, base, offset, sign))
    return found


def _written(value: float) -> float:
    """To four digits: constants are written so."""
    return float(f"{value:.4g}")


def _complex(heads: np.ndarray, layout: str) -> np.ndarray:
    """[…, H] → […, H/2]: the pairs that are turned together."""
    half = heads.shape[-1] // 2
    if layout == "halves":
        return heads[..., :half] + 1j * heads[..., half:]
    return heads[..., 0::2] + 1j * heads[..., 1::2]
