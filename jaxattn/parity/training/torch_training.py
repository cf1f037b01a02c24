"""The oracle's training: a float64 copy of a torch module, one step after the other."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..._tensors import to_numpy, to_torch
from ...convert.optimizer_moments import steps_made
from ...convert.optimizers import check_step_hooks
from ...convert.schedules import check_owner
from ...convert.torch_copy import Copier, floating_as
from .. import limits
from ..dropout_plan import DropoutPlan
from ..outputs import Flat, flatten_result
from ..settings import oracle_settings
from ..torch_side import device_of, masked
from .data import Batch, TorchStep, mean_square


class TorchTraining:
    """A float64 copy of a torch module and of its optimizer.

    Attributes:
        module: the copy.
        optimizer: of the copy's parameters, as it was before the first step.
        schedule: as given; a scheduler's copy, of the copied optimizer.
        watch: of the first forward pass.
    """

    def __init__(
        self,
        torch_module: Any,
        torch_optimizer: Any,
        loss: Callable[..., Any] | None,
        schedule: Any,
        clip_norm: float | None,
        dropout: DropoutPlan | None,
        seed: int,
    ):
        copier = Copier(floating_as("float64"))
        self.module, self.optimizer, self.schedule = _in_float64(torch_module, torch_optimizer, schedule, copier)
        self._loss, self._clip_norm, self._dropout, self._seed = copier.copy(loss), clip_norm, dropout, seed
        self._scheduler: Any = None
        self.unused: tuple[str, ...] | None = None
        self.watch = limits.Watch(torch_module)

    @property
    def description(self) -> str:
        """The optimizer's class, its groups, the schedule and the clipping."""
        groups = len(self.optimizer.param_groups)
        parts = [f"{groups} groups" if groups > 1 else "", "a schedule" if self.schedule is not None else ""]
        parts.append("" if self._clip_norm is None else f"gradients clipped to {self._clip_norm:g}")
        told = ", ".join(part for part in parts if part)
        return type(self.optimizer).__name__ + (f" ({told})" if told else "")

    def gradients(self, index: int, batch: Batch) -> TorchStep:
        """Loss and gradients of this step."""
        device = device_of(self.module)
        plan = None if self._dropout is None else replace(self._dropout, step=index)
        self.module.zero_grad(set_to_none=True)
        with oracle_settings(device.type):
            args, kwargs = batch.arguments.call_with([to_torch(a).to(device) for a in batch.arguments.arrays])
            with self.watch if index == 0 else nullcontext(), masked(self.module, plan) as masks:
                result = self.module(*args, **kwargs)
            if index == 0:
                limits.check_deterministic(self.module, self.watch, plan)
            flat = flatten_result(result)
            targets = batch.target.arrays if self._loss is not None else self._targets(index, flat)
            tensors = [to_torch(target).to(device) for target in targets]
            if self._loss is None:
                value = mean_square([output for output in flat.arrays if output.is_floating_point()], tensors)
            else:
                value = self._loss(result, *batch.target.call_with(tensors)[0])
            value.backward()
        found = {name: value.grad for name, value in self.module.named_parameters()}
        self._check_unused(tuple(name for name, gradient in found.items() if gradient is None))
        gradients = {name: to_numpy(gradient).copy() for name, gradient in found.items() if gradient is not None}
        return TorchStep(value.detach().item(), gradients, flat, targets, None if plan is None else dict(masks))

    def update(self) -> dict[str, np.ndarray]:
        """The parameters after this step, and the statistics that it gathered."""
        import torch

        if self.schedule is not None and self._scheduler is None:
            self._scheduler = _scheduler(self.optimizer, self.schedule)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._clip_norm)
        self.optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        gathered = [(name, value) for name, value in self.module.named_buffers() if value.is_floating_point()]
        return {name: to_numpy(value).copy() for name, value in (*self.module.named_parameters(), *gathered)}

    def _targets(self, index: int, flat: Flat) -> tuple[np.ndarray, ...]:
        """One for each floating output."""
        shapes = [tuple(output.shape) for output in flat.arrays if output.is_floating_point()]
        return tuple(np.random.default_rng([self._seed, index, i]).standard_normal(s) for i, s in enumerate(shapes))

    def _check_unused(self, unused: tuple[str, ...]) -> None:
        if self.unused is None:
            self.unused = unused
        elif self.unused != unused:
            changed = ", ".join(f"`{name}`" for name in sorted(set(self.unused) ^ set(unused)))
            raise ValueError(
                "A parameter must get a gradient in every step or in none: torch skips those without, optax decays "
                f"and counts them; got some steps only for {changed}."
            )


def _in_float64(torch_module: Any, torch_optimizer: Any, schedule: Any, copier: Copier) -> tuple[Any, Any, Any]:
    """Copies; the optimizer's are of the copy's parameters, the scheduler's of the copy of the optimizer."""
    made = hasattr(torch_optimizer, "param_groups")
    if not made and not callable(torch_optimizer):
        raise TypeError(
            "`optimizer` must be a torch optimizer or a function of the parameters that makes one, got "
            f"{type(torch_optimizer).__name__}."
        )
    if made:
        check_step_hooks(torch_optimizer)
    scheduled = hasattr(schedule, "optimizer")
    if scheduled:
        check_owner(torch_optimizer, schedule)
    module, copied = copier.copy(torch_module), copier.copy(torch_optimizer if made else None)
    schedule = copier.copy(schedule) if scheduled else schedule
    own: Any = copied if made else torch_optimizer(list(module.parameters()))
    for group in own.param_groups:
        group["lr"] = float(group["lr"])  # a tensor would keep the step in its own dtype
    for state in own.state.values():
        for name, value in state.items():
            if hasattr(value, "is_floating_point") and value.is_floating_point():
                state[name] = value.double()
    return module, own, schedule


def _scheduler(torch_optimizer: Any, schedule: Any) -> Any:
    """The scheduler itself, or torch's LambdaLR of this function, standing where the optimizer stands."""
    from torch.optim.lr_scheduler import LambdaLR

    if hasattr(schedule, "optimizer"):
        return schedule
    made = steps_made(torch_optimizer)
    for group in torch_optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"])
    return LambdaLR(torch_optimizer, lambda step: float(schedule(step)), last_epoch=made - 1)
