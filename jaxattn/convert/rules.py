"""Which checkpoint tensors become which parameters, in NumPy and both ways.

A rule maps m source tensors (PyTorch's names and layouts) to one target (a path in a Flax module), invertibly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from .layout import aligned_copy, aligned_empty, transpose

Shape = tuple[int, ...]


@runtime_checkable
class Transform(Protocol):
    """An invertible change of layout: `forward` into Flax's, `backward` into PyTorch's; never a change of value."""

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        """The shapes that the sources must have for a target of this shape."""
        ...

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray: ...

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]: ...


class Identity:
    """The same tensor on both sides."""

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        return (target,)

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        return aligned_copy(sources[0])

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array(target, order="C"),)


class Transpose:
    """torch's (out, in) ↔ Flax's (in, out)."""

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        return ((*target[:-2], target[-1], target[-2]),)

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        return transpose(sources[0])

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]:
        return (transpose(target),)


class ConvKernel:
    """torch's (out, in / groups, *spatial) ↔ Flax's (*spatial, in / groups, out)."""

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        return ((target[-1], target[-2], *target[:-2]),)

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        return aligned_copy(np.moveaxis(sources[0], (0, 1), (-1, -2)))

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array(np.moveaxis(target, (-1, -2), (0, 1)), order="C"),)


class Pack:
    """Separate tensors ↔ one whose first axis holds their rows one after the other (query, key, value ↔ in_proj)."""

    def __init__(self, parts: int):
        self.parts = parts

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        return ((target[0] // self.parts, *target[1:]),) * self.parts

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        rows = sum(source.shape[0] for source in sources)
        return np.concatenate(sources, axis=0, out=aligned_empty((rows, *sources[0].shape[1:]), sources[0].dtype))

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.array(part, order="C") for part in np.split(target, self.parts, axis=0))


class Count:
    """torch's count of batches, an int64, ↔ a float32 that jax.grad takes; exact up to 2²⁴, more is refused."""

    #: What the sources hold, where it isn't the target's dtype.
    source_dtype = np.dtype(np.int64)
    most = 2**24

    def source_shapes(self, target: Shape) -> tuple[Shape, ...]:
        return (target,)

    def forward(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        return aligned_copy(np.asarray(sources[0]).astype(np.float32))

    def backward(self, target: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array(target).astype(self.source_dtype),)


IDENTITY = Identity()
COUNT = Count()
TRANSPOSE = Transpose()
CONV_KERNEL = ConvKernel()


@dataclass(frozen=True)
class Rule:
    """`sources` (state-dict keys) ↔ `target` (parameter path), by `transform`."""

    sources: tuple[str, ...]
    target: str
    transform: Transform = IDENTITY

    def under(self, source_prefix: str, target_prefix: str) -> "Rule":
        """The same rule for a module that is a child of another one."""
        sources = tuple(source_prefix + source for source in self.sources)
        return replace(self, sources=sources, target=target_prefix + self.target)


@dataclass(frozen=True)
class Constant:
    """A tensor that some checkpoints carry although it is no weight: it must equal `values`, and is then ignored.

    `values` of None are any: a count that no forward pass reads.
    """

    source: str
    values: np.ndarray | None
