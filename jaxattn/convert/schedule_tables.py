"""What torch's own scheduler does in the next steps, as a table: for what has no closed form."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .registry import class_name


def looked_up(table: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Step → its entry; not a number beyond the table."""

    def value(n: jax.Array) -> jax.Array:
        inside = (n >= 0) & (n < len(table))
        return jnp.where(inside, jnp.asarray(table)[jnp.clip(n, 0, len(table) - 1).astype(int)], jnp.nan)

    return value


def tabulated(function: Callable[[int], Any], steps: int) -> Callable[[jax.Array], jax.Array]:
    """`function` of 0, 1, … steps − 1.

    Raises:
        ValueError: it fails at one of these steps.
    """
    values = np.empty(steps)
    for step in range(steps):
        try:
            values[step] = float(function(step))
        except Exception as error:
            raise ValueError(_fails("schedule", steps, step, error)) from error
    return looked_up(values)


def simulated(scheduler: Any, made: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Learning rates and momenta of each group in steps 0 … steps − 1; NaN in those that are made already.

    A copy of the scheduler moves the groups of a stand-in; neither it nor its optimizer is changed.

    Raises:
        ValueError: the scheduler fails before the last step.
    """
    optimizer = scheduler.optimizer
    stand_in = _StandIn(optimizer)
    twin = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates = np.full((2, len(stand_in.param_groups), steps), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(made, steps):
            for index, group in enumerate(stand_in.param_groups):
                rates[:, index, step] = float(group["lr"]), momentum_of(group)
            if step + 1 == steps:
                break
            try:
                twin.step()
            except Exception as error:
                raise ValueError(_fails(class_name(scheduler), steps, step + 1, error)) from error
    return [(rates[0, index], rates[1, index]) for index in range(len(stand_in.param_groups))]


def momentum_of(group: Any) -> float:
    """What a scheduler may cycle: `momentum`, or the first of `betas`; not a number where there is neither."""
    return float(group["momentum"] if "momentum" in group else group.get("betas", (np.nan,))[0])


class _StandIn:
    """What a scheduler sees of its optimizer, without parameters."""

    def __init__(self, optimizer: Any):
        self.defaults = dict(optimizer.defaults)
        options = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        self.param_groups = copy.deepcopy(options)
        self._opt_called = True

    def step(self) -> None:
        """Schedulers look whether it was called."""


def _fails(name: str, steps: int, step: int, error: Exception) -> str:
    return (
        f"`{name}` must give a learning rate for every step before steps={steps}, got {type(error).__name__} at step "
        f"{step}: {error}."
    )
