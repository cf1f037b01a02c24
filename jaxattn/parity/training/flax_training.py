"""The twin's training: a float64 copy of a Flax module, one jitted step after the other."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ...convert.apply import state_dict
from ...convert.optimizer_moments import optimizer_state, steps_made
from ...convert.optimizers import optimizer
from ..arguments import is_floating
from ..dropout_plan import dropout_arguments
from ..flax_side import in_float64
from ..outputs import flatten_result, pair
from ..quick import quickly
from ..settings import highest_precision
from .data import Batch, FlaxStep, TorchStep, mean_square
from .torch_training import TorchTraining


class FlaxTraining:
    """A float64 copy of a Flax module, and its optax state, which starts where torch's optimizer stands."""

    def __init__(
        self,
        flax_module: nnx.Module,
        theirs: TorchTraining,
        loss: Callable[..., Any] | None,
        tx: optax.GradientTransformation | None,
        clip_norm: float | None,
        steps: int | None,
    ):
        self._module = in_float64(flax_module)
        self._loss = loss
        self._graphdef, self._params, self._rest = nnx.split(self._module, nnx.Param, ...)
        if tx is None:
            given = (theirs.optimizer, theirs.module, self._module)
            options: dict[str, Any] = {"schedule": theirs.schedule, "clip_norm": clip_norm}
            options |= {"unused": theirs.unused or (), "steps": _whole_run(theirs, steps)}
            self._tx, self._state = optimizer(*given, **options), optimizer_state(*given, **options)
        else:
            self._tx, self._state = tx, tx.init(self._params)
        self._now: tuple[Batch, TorchStep] | None = None
        self._step = quickly(self._update)

    def step(self, batch: Batch, theirs: TorchStep) -> FlaxStep:
        """Loss, gradients and the updated parameters."""
        if self._now is not None and self._now[0].structure != batch.structure:
            raise ValueError(
                "Every item of `data` must have the arguments of the first one, as arrays in the same places, got "
                f"{batch.arguments.names} after {self._now[0].arguments.names}."
            )
        self._now = batch, theirs
        arrays = (batch.arguments.arrays, theirs.targets, theirs.masks)
        with highest_precision():
            loss, gradients, self._params, self._rest, self._state = self._step(
                self._params, self._rest, self._state, *arrays
            )
        updated = nnx.merge(self._graphdef, self._params, self._rest)
        return FlaxStep(float(loss), state_dict(gradients, like=self._module), state_dict(updated))

    def _update(self, params: Any, rest: Any, state: Any, arrays: Any, targets: Any, masks: Mapping[str, Any] | None):
        assert self._now is not None
        batch, theirs = self._now

        def objective(params: Any) -> tuple[jax.Array, Any]:
            module = nnx.merge(self._graphdef, params, rest, copy=True)
            args, kwargs = batch.arguments.call_with([jnp.asarray(array) for array in arrays])
            dropping = {} if masks is None else dropout_arguments(self._module, masks)
            result = module(*args, **kwargs, **dropping)
            if self._loss is None:
                flat = flatten_result(result)
                _, order = pair(theirs.outputs, flat)
                outputs = [flat.arrays[index] for index in order]
                value = mean_square([output for output in outputs if is_floating(output)], targets)
            else:
                value = self._loss(result, *batch.target.call_with([jnp.asarray(target) for target in targets])[0])
            return value, nnx.split(module, nnx.Param, ...)[2]

        (loss, rest), gradients = jax.value_and_grad(objective, has_aux=True)(params)
        updates, state = self._tx.update(gradients, state, params)
        return loss, gradients, optax.apply_updates(params, updates), rest, state


def _whole_run(theirs: TorchTraining, steps: int | None) -> int | None:
    """The steps made before and now, for a schedule that must be tabulated; None where they aren't known."""
    if steps is None or theirs.schedule is None:
        return None
    return steps_made(theirs.optimizer, theirs.schedule) + steps
