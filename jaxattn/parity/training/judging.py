"""The steps of both sides judged: the first that parts, and in what."""

import math
from collections.abc import Mapping

import numpy as np

from ..._checks import listed
from ..criterion import (
    GRADIENT_TOLERANCE,
    TRAINING_TOLERANCE,
    ZERO_GRADIENT,
    Deviation,
    algorithm_verdict,
    deviation,
    gradient_scale,
)
from ..rows import LISTED
from ..train_report import Step
from ..weights import shared_names
from .data import FlaxStep, TorchStep


class Judge:
    """Takes steps one after the other.

    Attributes:
        steps: in order.
        first: index of the first step that parts, None if none does.
        problems: what fails there.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.first: int | None = None
        self.problems: list[str] = []
        self._noisy: dict[str, np.ndarray] = {}

    @property
    def notes(self) -> list[str]:
        """What was left out, and why."""
        noisy = {name: noise for name, noise in sorted(self._noisy.items()) if noise.any()}
        tensors = [f"`{name}` ({int(noise.sum())} of {noise.size} elements)" for name, noise in noisy.items()]
        return [f"not judged, their gradient is zero up to rounding: {listed(tensors)}"] if tensors else []

    def add(self, index: int, theirs: TorchStep, parameters: Mapping[str, np.ndarray], ours: FlaxStep) -> None:
        """Judge one step.

        Args:
            index: of the step.
            theirs: torch's loss and gradients.
            parameters: torch's after the update.
            ours: Flax's step.
        """
        scale = gradient_scale(theirs.gradients.values())
        for name in shared_names(theirs.gradients, ours.gradients):
            noise = _noise(theirs.gradients[name], ours.gradients[name], scale)
            self._noisy[name] = noise | self._noisy.get(name, False)
        loss = algorithm_verdict(
            np.asarray(ours.loss),
            np.asarray(theirs.loss),
            scale=max(1.0, abs(theirs.loss)),
            tolerance=TRAINING_TOLERANCE,
        )
        gradients = self._deviations(theirs.gradients, ours.gradients)
        updated = self._deviations(parameters, ours.parameters)
        worst = max(updated, key=lambda name: _size(updated[name]), default="")
        gradient_error = max((_size(error) for error in gradients.values()), default=0.0)
        error = _size(updated[worst]) if worst else 0.0
        proves = loss.error.not_finite == 0 and not any(found.not_finite for found in gradients.values())
        measured = (loss.error, *gradients.values(), *updated.values())
        self.steps.append(
            Step(
                index,
                theirs.loss,
                ours.loss,
                loss.error.largest,
                gradient_error / (scale or 1.0),
                error,
                worst if error else "",
                sum(found.not_finite for found in measured),
                proves and all(step.proves for step in self.steps),
            )
        )
        problems = [] if loss.problem is None else [f"loss: {loss.problem}"]
        if not self.steps[1:]:
            # Later gradients are at parameters that rounding has moved apart.
            problems += _failing("gradient of", gradients, GRADIENT_TOLERANCE * scale)
        problems += _failing("after the update", updated, TRAINING_TOLERANCE)
        if problems and self.first is None:
            self.first, self.problems = index, problems

    def _deviations(self, theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> dict[str, Deviation]:
        found = {}
        for name in shared_names(theirs, ours):
            noise = self._noisy.get(name, np.zeros(theirs[name].shape, bool))
            found[name] = deviation(np.where(noise, theirs[name], ours[name]), theirs[name])
        return found


def _noise(theirs: np.ndarray, ours: np.ndarray, scale: float) -> np.ndarray:
    """Elements whose gradient is zero up to rounding: Adam makes steps of it, in directions that mean nothing.

    By element, because torch packs the biases of queries, keys (those have none) and values into one tensor.
    """
    size = np.maximum(np.abs(theirs), np.abs(ours))
    return (size > 0.0) & (size <= ZERO_GRADIENT * scale)


def _size(error: Deviation) -> float:
    return math.inf if error.problem else error.largest


def _failing(what: str, errors: Mapping[str, Deviation], allowed: float) -> list[str]:
    """One sentence for each tensor that is further off than allowed, the worst first."""
    found = sorted((name for name in errors if _size(errors[name]) > allowed), key=lambda name: -_size(errors[name]))
    problems = [
        f"{what} `{name}`: {errors[name].problem or f'{errors[name].largest:.2g} > {allowed:.2g}'}"
        for name in found[:LISTED]
    ]
    return problems + ([f"… ({len(found)} tensors)"] if len(found) > LISTED else [])
