"""torch's learning-rate schedulers in closed form: step → learning rate, traced in float64.

torch multiplies the last learning rate by a factor each step; the products telescope. Where torch's rounding leaves
something behind that a plain closed form lacks (the way up of a cosine starts anew at each trough), that is repeated
here.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .registry import class_name
from .schedule_lambdas import over, traced_factor

#: Step, a float64 scalar → learning rate, momentum, or a factor of one.
Formula = Callable[[jax.Array], Any]


def _step(scheduler: Any) -> Formula:
    return lambda n: scheduler.gamma ** jnp.floor(over(n, scheduler.step_size))


def _multi_step(scheduler: Any) -> Formula:
    milestones = sorted(float(m) for m in scheduler.milestones.elements() if m >= 0 and m == int(m))
    return lambda n: scheduler.gamma ** jnp.searchsorted(jnp.asarray(milestones), n, side="right").astype(n.dtype)


def _constant(scheduler: Any) -> Formula:
    if scheduler.total_iters < 1:
        raise NotImplementedError("ConstantLR without a step (total_iters < 1) has no closed form.")
    ends = scheduler.total_iters == int(scheduler.total_iters)
    return lambda n: jnp.where((n >= scheduler.total_iters) & ends, 1.0, scheduler.factor)


def _linear(scheduler: Any) -> Formula:
    """start + (end − start) · n / total, with torch's last factor, which may leave a rounding error of zero."""
    start, rise, total = scheduler.start_factor, scheduler.end_factor - scheduler.start_factor, scheduler.total_iters
    if total < 1:
        return lambda n: jnp.full_like(n, start)

    def factor(n: jax.Array) -> jax.Array:
        before = total * start + (jnp.clip(n, 1, math.floor(total)) - 1) * rise
        return jnp.where(n == 0, start, over(before, total) * (1.0 + rise / before))

    return factor


def _exponential(scheduler: Any) -> Formula:
    return lambda n: scheduler.gamma**n


def _polynomial(scheduler: Any) -> Formula:
    total, power = scheduler.total_iters, scheduler.power
    if total < 1:
        return jnp.ones_like
    return lambda n: (1.0 - over(jnp.minimum(n, math.floor(total)), total)) ** power


def _cosine(scheduler: Any, index: int) -> Formula:
    period, end = scheduler.T_max, scheduler.eta_min
    height = (float(scheduler.base_lrs[index]) - end) / 2

    def raised(n: Any) -> Any:
        return 1 + jnp.cos(over(math.pi * n, period))

    def rate(n: jax.Array) -> jax.Array:
        first = end + height * raised(n)
        if period != int(period):
            return first
        trough = period + 1 + 2 * period * jnp.floor(over(jnp.maximum(n - 1 - period, 0), 2 * period))
        later = end + height * (1 - math.cos(math.pi / period)) * (raised(n) / raised(trough))
        return jnp.where(n <= period, first, later)

    return rate


def _warm_restarts(scheduler: Any, index: int) -> Formula:
    length, times, end = scheduler.T_0, scheduler.T_mult, scheduler.eta_min
    height = (float(scheduler.base_lrs[index]) - end) / 2

    def rate(n: jax.Array) -> jax.Array:
        if times == 1:
            angle = over(math.pi * jnp.mod(n, length), length)
        else:
            starts = [0]
            while starts[-1] < 2**31:
                starts.append(starts[-1] * times + length)
            begun = jnp.searchsorted(jnp.asarray(starts), n.astype(int), side="right") - 1
            angle = math.pi * (n - jnp.asarray(starts, float)[begun]) / (length * jnp.asarray(float(times)) ** begun)
        return end + height * (1 + jnp.cos(angle))

    return rate


def _one_cycle(scheduler: Any, index: int, kind: str) -> Formula:
    group = scheduler.optimizer.param_groups[index]
    phases = scheduler._schedule_phases
    begins = [0.0, *(phase["end_step"] for phase in phases)]

    def value(n: jax.Array) -> jax.Array:
        result = jnp.full_like(n, jnp.nan)
        for place, (phase, begin) in reversed(list(enumerate(zip(phases, begins, strict=False)))):
            start, stop = float(group[phase[f"start_{kind}"]]), float(group[phase[f"end_{kind}"]])
            part = over(n - begin, phase["end_step"] - begin)
            if scheduler._anneal_func_type == "cos":
                annealed = stop + (start - stop) / 2.0 * (jnp.cos(math.pi * part) + 1)
            else:
                annealed = (stop - start) * part + start
            until = scheduler.total_steps if place == len(phases) - 1 else phase["end_step"]
            result = jnp.where(n <= until, annealed, result)
        return result

    return value


def _cyclic(scheduler: Any, index: int, kind: str) -> Formula:
    if scheduler._scale_fn_custom is not None:
        raise NotImplementedError("CyclicLR with a scale_fn of one's own has no closed form.")
    if kind == "lr":
        start, stop = float(scheduler.base_lrs[index]), float(scheduler.max_lrs[index])
    else:
        start, stop = float(scheduler.max_momentums[index]), float(scheduler.base_momentums[index])

    def value(n: jax.Array) -> jax.Array:
        cycle = jnp.floor(1 + over(n, scheduler.total_size))
        x = 1.0 + over(n, scheduler.total_size) - cycle
        ratio = scheduler.step_ratio
        down = over(x - 1, ratio - 1) if ratio != 1 else x
        height = jnp.where(x <= ratio, over(x, ratio), down) * (stop - start)
        scale = {"triangular": lambda: 1.0, "triangular2": lambda: 2.0 ** (1 - cycle)}
        return start + height * scale.get(scheduler.mode, lambda: scheduler.gamma**n)()

    return value


def _lambda(scheduler: Any, index: int) -> Formula:
    factor, base = traced_factor(scheduler.lr_lambdas[index]), float(scheduler.base_lrs[index])
    return lambda n: base * factor(n)


def _sequential(scheduler: Any, index: int) -> Formula:
    """Each part counts from its milestone, and starts from the group's own learning rate."""
    milestones = list(scheduler._milestones)
    if any(later <= earlier for earlier, later in zip([0, *milestones], milestones, strict=False)):
        raise NotImplementedError(
            f"SequentialLR whose milestones don't increase from 1, {milestones}, isn't translated."
        )
    for part in scheduler._schedulers:
        if not (_named(part) in FACTORS or _named(part) in PARTS):
            raise NotImplementedError(f"SequentialLR with a part {_named(part)} has no closed form.")
    parts = [_rate(part, index) for part in scheduler._schedulers]

    def rate(n: jax.Array) -> jax.Array:
        result = parts[0](n)
        for milestone, part in zip(milestones, parts[1:], strict=True):
            result = jnp.where(n >= milestone, part(jnp.maximum(n - milestone, 0)), result)
        return result

    return rate


def _chained(scheduler: Any, index: int) -> Formula:
    """Schedulers that only multiply: the product of their factors."""
    for part in scheduler._schedulers:
        if _named(part) not in FACTORS:
            raise NotImplementedError(
                f"ChainedScheduler with {_named(part)}, which doesn't only multiply, has no closed form."
            )
    factors = [FACTORS[_named(part)](part) for part in scheduler._schedulers]
    base = float(scheduler.optimizer.param_groups[index]["initial_lr"])
    return lambda n: base * math.prod([factor(n) for factor in factors], start=jnp.ones_like(n))


#: Schedulers that only multiply: step → factor of the group's own learning rate.
FACTORS: dict[str, Callable[[Any], Formula]] = {
    "StepLR": _step,
    "MultiStepLR": _multi_step,
    "ConstantLR": _constant,
    "LinearLR": _linear,
    "ExponentialLR": _exponential,
    "PolynomialLR": _polynomial,
}
#: Others that may be a part of SequentialLR: (scheduler, index of the group) → step → learning rate.
PARTS: dict[str, Callable[[Any, int], Formula]] = {
    "CosineAnnealingLR": _cosine,
    "CosineAnnealingWarmRestarts": _warm_restarts,
    "LambdaLR": _lambda,
}
WHOLE: dict[str, Callable[[Any, int], Formula]] = {
    **PARTS,
    "SequentialLR": _sequential,
    "ChainedScheduler": _chained,
    "OneCycleLR": lambda scheduler, index: _one_cycle(scheduler, index, "lr"),
    "CyclicLR": lambda scheduler, index: _cyclic(scheduler, index, "lr"),
}


def _named(scheduler: Any) -> str:
    """The class, without its module if that is torch's."""
    return class_name(scheduler).removeprefix("torch.optim.lr_scheduler.")


def _rate(scheduler: Any, index: int) -> Formula:
    name = _named(scheduler)
    if name in FACTORS:
        factor, base = FACTORS[name](scheduler), float(scheduler.base_lrs[index])
        return lambda n: base * factor(n)
    if name in WHOLE:
        return WHOLE[name](scheduler, index)
    raise NotImplementedError(f"{name} has no closed form.")


def rate_formula(scheduler: Any, index: int) -> Formula:
    """Step → learning rate of this group.

    Raises:
        NotImplementedError: a scheduler, or an option of one, without a closed form.
        TypeError: LambdaLR with a function that can't be traced.
    """
    return _rate(scheduler, index)


def momentum_formula(scheduler: Any, index: int) -> Formula | None:
    """Step → momentum, or the first of `betas`; None where the scheduler leaves it alone."""
    if not getattr(scheduler, "cycle_momentum", False):
        return None
    cycle = _one_cycle if _named(scheduler) == "OneCycleLR" else _cyclic
    return cycle(scheduler, index, "momentum")
