"""What both sides of a training run share: the arguments of a step, its loss, its results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import Arguments
from ..outputs import Flat


@dataclass(frozen=True)
class Batch:
    """The arguments of one step, and its target if the loss takes one."""

    arguments: Arguments
    target: Arguments

    @property
    def structure(self) -> tuple[Any, ...]:
        """All but the arrays."""
        parts = (self.arguments, self.target)
        fixed = [leaf for part in parts for leaf, place in zip(part.leaves, part.places, strict=True) if place is None]
        return (*((part.treedef, part.places) for part in parts), repr(fixed))


@dataclass(frozen=True)
class Loss:
    """The user's loss on either side; None is the mean square from drawn targets."""

    torch: Callable[..., Any] | None
    jax: Callable[..., Any] | None

    @classmethod
    def of(cls, loss: Any) -> "Loss":
        """From one function, a pair of them, or None."""
        pair = loss if isinstance(loss, (tuple, list)) else (loss, loss)
        if len(pair) != 2 or not all(part is None or callable(part) for part in pair):
            raise TypeError(f"`loss` must be a function or a pair (torch's, JAX's), got {loss!r}.")
        torch_loss, jax_loss = pair
        return cls(torch_loss, jax_loss if jax_loss is None or jax_loss is not torch_loss else _on_jax(jax_loss))


def _on_jax(loss: Callable[..., Any]) -> Callable[..., Any]:
    """One function for both sides, which may know PyTorch alone."""

    def on_jax(*arguments: Any) -> Any:
        try:
            return loss(*arguments)
        except Exception as error:
            kind = type(error).__name__
            raise TypeError(f"`loss` failed on JAX arrays ({kind}: {error}): give a pair (torch's, JAX's).") from error

    return on_jax


@dataclass(frozen=True)
class TorchStep:
    """A step before its update; gradients of None are missing."""

    loss: float
    gradients: dict[str, np.ndarray]
    outputs: Flat
    targets: tuple[np.ndarray, ...]
    masks: dict[str, np.ndarray] | None


@dataclass(frozen=True)
class FlaxStep:
    """A step; `parameters` are those after its update."""

    loss: float
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]


def mean_square(outputs: Any, targets: Any) -> Any:
    """Σ over floating outputs of the mean of (output − target)²; of torch tensors or of JAX arrays."""
    values = [((output - target) ** 2).mean() for output, target in zip(outputs, targets, strict=True)]
    return sum(values[1:], values[0])
