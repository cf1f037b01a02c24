"""A case: a configured variant with shapes, its inputs, and how to draw them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from .inputs import B, generator, randomise


@dataclass(frozen=True)
class Input:
    """An array and its axes: B batch, BN batch times heads, T or S length, D features; `_` for size 1."""

    array: np.ndarray
    axes: str

    @property
    def batch_axis(self) -> int | None:
        names = self.axes.split()
        return next((i for i, name in enumerate(names) if name in ("B", "BN")), None)

    def example(self, b: int) -> np.ndarray:
        """The input of one example, without its batch axis."""
        if self.batch_axis is None:
            return self.array
        return np.take(self.batched(), b, axis=self.batch_axis)

    def batched(self) -> np.ndarray:
        """The array with a batch axis of its own: [B·N, …] becomes [B, N, …]."""
        return self.array.reshape(B, -1, *self.array.shape[1:]) if self.axes.startswith("BN") else self.array


@dataclass(frozen=True)
class Case:
    """One configured variant with shapes.

    `torch_module` builds the oracle, `inputs` and `arrays` are what it is called with, `flags` are passed as they are.
    `mask(keep [B, T, S])` says the same mask in this variant's own words; None for a variant without masks.
    `output_axes` names the axes of each result.
    """

    name: str
    torch_module: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], tuple[Input, ...]]
    output_axes: tuple[str, ...]
    arrays: Callable[[np.random.Generator], dict[str, Input]] = lambda rng: {}
    flags: dict[str, Any] = field(default_factory=dict)
    mask: Callable[[np.ndarray], dict[str, Input]] | None = None
    sources: tuple[int, ...] = (0,)
    is_self: bool = True

    def oracle(self) -> nn.Module:
        return randomise(self.torch_module(), self.name)

    def flax(self, oracle: nn.Module | None = None) -> Any:
        import jaxattn

        return jaxattn.from_torch(oracle or self.oracle())

    def draw(self) -> tuple[tuple[Input, ...], dict[str, Input]]:
        rng = generator(self.name)
        return self.inputs(rng), self.arrays(rng)


def normal(*shape: int, axes: str) -> Callable[[np.random.Generator], Input]:
    return lambda rng: Input(rng.normal(size=shape).astype(np.float32), axes)


def drawn(*makers: Callable[[np.random.Generator], Input]) -> Callable[[np.random.Generator], tuple[Input, ...]]:
    return lambda rng: tuple(make(rng) for make in makers)


def keep_mask(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random, True = may attend, no empty row and at least one blocked key a row."""
    keep = rng.random(shape) < 0.6
    keep[..., 0], keep[..., -1] = True, False
    return keep


def torch_arguments(inputs: tuple[Input, ...], arrays: dict[str, Input], dtype=None) -> tuple[list, dict]:
    def tensor(value: Input) -> torch.Tensor:
        array = torch.from_numpy(value.array)
        return array.to(dtype) if dtype is not None and array.is_floating_point() else array

    return [tensor(value) for value in inputs], {name: tensor(value) for name, value in arrays.items()}
