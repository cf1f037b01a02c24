"""How far torch's own float64 result moves when what it is made of moves by one ulp: no port can be nearer."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..convert.torch_copy import floating_as, structural_copy
from .arguments import Arguments, is_floating
from .criterion import deviation

#: Directions that are tried, each element up or down by the toss of a coin.
DRAWS = 8
#: The worst direction moves a result further than any that is drawn: so many times what the draws show is its movement.
REACH = 4.0


def moved_arguments(arguments: Arguments, seed: int) -> Arguments:
    """Every floating array, already in float64, with each element one ulp up or down."""
    rng = np.random.default_rng([seed, 0])
    return arguments.holding([_moved(array, rng) if is_floating(array) else array for array in arguments.arrays])


def moved_module(torch_module: Any, seed: int) -> Any:
    """A copy in float64 whose parameters' elements are each one ulp up or down."""
    import torch

    rng = np.random.default_rng([seed, 1])
    module = structural_copy(torch_module, floating_as("float64"))
    with torch.inference_mode(False), torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                values = _moved(parameter.detach().cpu().numpy(), rng)
                parameter.copy_(torch.from_numpy(values))
    return module


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What would leave the range, or is none of a number, stays: blocking masks among it."""
    direction = np.where(rng.random(array.shape) < 0.5, -1.0, 1.0)
    with np.errstate(all="ignore"):
        moved = array + direction * np.spacing(np.abs(array))
    return np.where(np.isfinite(moved), moved, array)


def movement(truth: np.ndarray, moved: Iterable[np.ndarray]) -> float:
    """How far the truth moves: what the largest difference from a result of what was moved stands for."""
    return REACH * max((deviation(other, truth).largest for other in moved if other.shape == truth.shape), default=0.0)


def movements(truth: Sequence[np.ndarray], moved: Iterable[Sequence[np.ndarray]]) -> list[float]:
    """The same for several arrays of one result."""
    results = list(moved)
    return [
        movement(array, [result[index] for result in results if index < len(result)])
        for index, array in enumerate(truth)
    ]
