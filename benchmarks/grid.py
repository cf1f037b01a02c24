"""The shapes that the attention operation is measured at. The grid is fixed: results of different days compare."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Point:
    """One shape: q [B, T, N, H], k and v [B, S, K, H], float32.

    Attributes:
        causal: query i sees keys j ≤ i + offset.
    """

    batch: int
    heads: int
    kv_heads: int
    length: int
    kv_length: int
    width: int
    causal: bool = False

    @property
    def offset(self) -> int:
        """Top-left, 0, but for decoding bottom-right: the one query is the newest position and sees all keys."""
        return self.kv_length - self.length if self.length == 1 else 0

    @property
    def blocks(self) -> bool:
        """Whether the causal mask blocks anything. It doesn't when decoding, so peers without an offset get none."""
        return self.causal and self.length > 1

    @property
    def shape_label(self) -> str:
        grouped = f" K{self.kv_heads}" if self.kv_heads != self.heads else ""
        cached = f" S{self.kv_length}" if self.kv_length != self.length else ""
        return f"B{self.batch} N{self.heads}{grouped} T{self.length}{cached} H{self.width}"

    @property
    def label(self) -> str:
        return f"{self.shape_label} {'causal' if self.causal else 'full'}"

    @property
    def products(self) -> int:
        """Floating-point operations of q kᵀ and of weights · v, the blocked half counted too: 4 · B · N · T · S · H."""
        return 4 * self.batch * self.heads * self.length * self.kv_length * self.width

    def mask(self) -> np.ndarray | None:
        """[T, S], True = may attend; None where nothing is blocked."""
        return np.tri(self.length, self.kv_length, self.offset, dtype=bool) if self.blocks else None

    def arrays(self) -> list[np.ndarray]:
        """q, k, v and a cotangent of the output, contiguous, standard normal."""
        rng = np.random.default_rng([self.batch, self.heads, self.length, self.width])
        queries = (self.batch, self.length, self.heads, self.width)
        keys = (self.batch, self.kv_length, self.kv_heads, self.width)
        return [rng.standard_normal(shape, np.float32) for shape in (queries, keys, keys, queries)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def full_and_causal(shapes: Sequence[tuple[int, int, int, int, int, int]]) -> list[Point]:
    return [Point(*shape, causal=causal) for shape in shapes for causal in (False, True)]


#: (B, N, K, T, S, H): square, grouped, decoding.
GRID = full_and_causal(
    [
        (1, 8, 8, 128, 128, 64),
        (8, 8, 8, 128, 128, 64),
        (1, 8, 8, 512, 512, 64),
        (4, 12, 12, 512, 512, 64),
        (1, 8, 8, 2048, 2048, 64),
        (1, 8, 8, 4096, 4096, 64),
        (2, 16, 16, 1024, 1024, 128),
        (1, 4, 4, 333, 333, 80),
        (1, 32, 8, 1024, 1024, 64),
        (8, 12, 12, 1, 1024, 64),
    ]
)
TINY = [
    Point(1, 2, 2, 16, 16, 8),
    Point(2, 4, 2, 13, 13, 8, causal=True),
    Point(2, 3, 3, 1, 17, 8, causal=True),
]


def series(points: Sequence[Point]) -> list[Point]:
    """The points that differ from the first in their length alone: what a curve over T can show."""

    def rest(point: Point) -> tuple[int, ...]:
        return point.batch, point.heads, point.kv_heads, point.width, point.length == point.kv_length

    return [point for point in points if rest(point) == rest(points[0])]
