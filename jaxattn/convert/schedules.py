"""Learning rates and momenta of a torch optimizer as functions of the step, one a group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .registry import class_name
from .schedule_formulas import momentum_formula, rate_formula
from .schedule_lambdas import traced_factor
from .schedule_tables import looked_up, momentum_of, simulated, tabulated

#: Step → learning rate or momentum.
Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class Course:
    """What one group does.

    Attributes:
        rate: step → learning rate.
        momentum: step → momentum, or the first of `betas`; None if it stays.
    """

    rate: Schedule
    momentum: Schedule | None = None


def at_float64(function: Schedule) -> Schedule:
    """`function` of a float64 step, whatever the parameters are: float32 would lose the end of a decay."""

    def value(count: Any) -> jax.Array:
        dtype = jnp.result_type(float)
        with jax.enable_x64(True):
            return jnp.asarray(function(jnp.asarray(count, jnp.float64)), dtype)

    return value


def schedules(torch_optimizer: Any, schedule: Any, *, steps: int | None = None) -> tuple[Schedule, ...]:
    """The learning rate of each param group as optax takes it: step 0, 1, … → learning rate.

    Closed forms, computed in float64: StepLR, MultiStepLR, ConstantLR, LinearLR, ExponentialLR, PolynomialLR,
    CosineAnnealingLR, CosineAnnealingWarmRestarts, OneCycleLR, CyclicLR; SequentialLR and ChainedScheduler of them; and
    LambdaLR of a function that takes a traced step, or of one of transformers' get_…_schedule….

        tx = optax.adamw(jaxattn.convert.schedules(torch_optimizer, scheduler)[0])

    Args:
        torch_optimizer: a live one.
        schedule: its scheduler, which makes one step for each of the optimizer's; or a function: step → factor.
        steps: how many steps the whole run has. What has no closed form is tabulated for so many, and is not a number
            beyond; the rest doesn't need it.

    Raises:
        NotImplementedError: a scheduler without a closed form, and no `steps`; ReduceLROnPlateau.
        TypeError: a function that can't be traced, and no `steps`.
        ValueError: a scheduler of another optimizer, or a learning rate that was changed besides the scheduler.
    """
    groups, courses = torch_optimizer.param_groups, courses_of(torch_optimizer, schedule, steps)
    constant = [optax.constant_schedule(float(group["lr"])) for group in groups]
    return tuple(same if course is None else course.rate for same, course in zip(constant, courses, strict=True))


def courses_of(torch_optimizer: Any, schedule: Any, steps: int | None = None) -> Sequence[Course | None]:
    """What each group does; None where nothing changes it. Arguments and errors as `schedules`."""
    groups = torch_optimizer.param_groups
    if schedule is None:
        if any("initial_lr" in group for group in groups):
            raise ValueError(
                "`torch_optimizer` has a learning-rate scheduler, got schedule=None: pass the scheduler, or a function "
                "of the step."
            )
        return [None] * len(groups)
    if not hasattr(schedule, "optimizer"):
        return [Course(at_float64(_of_function(group, schedule, steps))) for group in groups]
    check_owner(torch_optimizer, schedule)
    made = count_of(schedule)
    try:
        courses = [_closed(schedule, index) for index in range(len(groups))]
        _check_standing(schedule, made, courses)
    except TypeError:
        if steps is None:
            raise
        courses = _tabulated(schedule, made, steps)
    except NotImplementedError as error:
        if steps is None:
            advice = "Pass steps=, how many steps the run has, to tabulate it."
            raise NotImplementedError(f"{error} {advice}") from None
        courses = _tabulated(schedule, made, steps)
    return courses


def check_owner(torch_optimizer: Any, scheduler: Any) -> None:
    """The scheduler is one that can be known in advance, and this optimizer's.

    Raises:
        NotImplementedError: ReduceLROnPlateau.
        ValueError: another optimizer's.
    """
    if class_name(scheduler) == "torch.optim.lr_scheduler.ReduceLROnPlateau" or hasattr(scheduler, "num_bad_epochs"):
        raise NotImplementedError(
            f"A schedule must depend on the step alone, got {class_name(scheduler)}, which watches a metric: use "
            "optax.contrib.reduce_on_plateau, which decides by other rules."
        )
    if scheduler.optimizer is not torch_optimizer:
        raise ValueError("`schedule` must be a scheduler of `torch_optimizer`, got one of another optimizer.")


def count_of(scheduler: Any) -> int:
    """How many steps the scheduler made.

    Raises:
        NotImplementedError: a chain whose parts made different numbers.
    """
    if hasattr(scheduler, "last_epoch"):
        return int(scheduler.last_epoch)
    counts = {count_of(part) for part in scheduler._schedulers}
    if len(counts) > 1:
        raise NotImplementedError(f"The parts of a ChainedScheduler must stand at one step, got {sorted(counts)}.")
    return counts.pop()


def _of_function(group: Any, function: Callable[[Any], Any], steps: int | None) -> Schedule:
    base = float(group.get("initial_lr", group["lr"]))
    try:
        factor = traced_factor(function)
    except TypeError:
        if steps is None:
            raise
        factor = tabulated(function, steps)
    return lambda n: base * factor(n)


def _closed(scheduler: Any, index: int) -> Course:
    momentum = momentum_formula(scheduler, index)
    return Course(at_float64(rate_formula(scheduler, index)), None if momentum is None else at_float64(momentum))


def _check_standing(scheduler: Any, made: int, courses: list[Course]) -> None:
    """The groups have what the closed forms say for this step: nothing else changed them."""
    groups = scheduler.optimizer.param_groups
    with jax.enable_x64(True):
        now = jax.jit(lambda n: [(c.rate(n), None if c.momentum is None else c.momentum(n)) for c in courses])(made)
    for index, (group, (rate, momentum)) in enumerate(zip(groups, now, strict=True)):
        pairs = {"lr": (float(group["lr"]), rate)}
        if momentum is not None:
            pairs["momentum"] = momentum_of(group), momentum
        for name, (got, wanted) in pairs.items():
            if not np.isclose(got, float(wanted), rtol=1e-9, atol=1e-9 * float(group.get("initial_lr", got))):
                raise ValueError(
                    f"Only `schedule` may change the optimizer's {name}, got {got} in group {index} where "
                    f"{class_name(scheduler)} has {float(wanted)} at step {made}: pass the scheduler that all others "
                    "are part of, or make a new one."
                )


def _tabulated(scheduler: Any, made: int, steps: int) -> list[Course]:
    if steps <= made:
        raise ValueError(f"`steps` must be more than the {made} that `schedule` has made, got {steps}.")
    courses = []
    for rates, momenta in simulated(scheduler, made, steps):
        cycles = len(np.unique(momenta[made:])) > 1 and not np.isnan(momenta[made:]).any()
        courses.append(Course(at_float64(looked_up(rates)), at_float64(looked_up(momenta)) if cycles else None))
    return courses
