"""Factors of the learning rate: transformers' by their formulas, functions of one's own by tracing them."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

#: Step → factor of the learning rate.
Factor = Callable[[Any], Any]
Number = int | float


def over(numerator: Any, denominator: Number) -> Any:
    """The division itself: by a constant XLA multiplies with the reciprocal, which moves a step across a boundary."""
    return numerator / jax.lax.optimization_barrier(0 * numerator + denominator)


def _constant(_: Any = None) -> Any:
    return 1.0


def _warm(step: Any, num_warmup_steps: Number, later: Any) -> Any:
    return jnp.where(step < num_warmup_steps, over(step, max(1, num_warmup_steps)), later)


def _part(step: Any, num_warmup_steps: Number, num_training_steps: Number) -> Any:
    return over(step - num_warmup_steps, max(1, num_training_steps - num_warmup_steps))


def _waves(num_cycles: Number, part: Any) -> Any:
    return 0.5 * (1.0 + jnp.cos(math.pi * float(num_cycles) * 2.0 * part))


def _constant_with_warmup(step: Any, *, num_warmup_steps: Number) -> Any:
    return _warm(step, num_warmup_steps, 1.0)


def _linear(step: Any, *, num_warmup_steps: Number, num_training_steps: Number) -> Any:
    left = over(num_training_steps - step, max(1, num_training_steps - num_warmup_steps))
    return _warm(step, num_warmup_steps, jnp.maximum(0.0, left))


def _cosine(
    step: Any, *, num_warmup_steps: Number, num_training_steps: Number, num_cycles: Number, min_lr_rate: Number = 0.0
) -> Any:
    wave = _waves(num_cycles, _part(step, num_warmup_steps, num_training_steps))
    return _warm(step, num_warmup_steps, jnp.maximum(0.0, wave * (1 - min_lr_rate) + min_lr_rate))


def _hard_restarts(step: Any, *, num_warmup_steps: Number, num_training_steps: Number, num_cycles: Number) -> Any:
    part = _part(step, num_warmup_steps, num_training_steps)
    wave = 0.5 * (1.0 + jnp.cos(math.pi * jnp.mod(float(num_cycles) * part, 1.0)))
    return _warm(step, num_warmup_steps, jnp.where(part >= 1.0, 0.0, jnp.maximum(0.0, wave)))


def _polynomial(
    step: Any, *, num_warmup_steps: Number, num_training_steps: Number, lr_end: Number, power: Number, lr_init: Number
) -> Any:
    left = 1 - over(jnp.minimum(step, num_training_steps) - num_warmup_steps, num_training_steps - num_warmup_steps)
    decayed = ((lr_init - lr_end) * jnp.maximum(left, 0.0) ** power + lr_end) / lr_init
    return _warm(step, num_warmup_steps, jnp.where(step > num_training_steps, lr_end / lr_init, decayed))


def _inverse_sqrt(step: Any, *, num_warmup_steps: Number, timescale: Number) -> Any:
    later = 1.0 / jnp.sqrt(over(jnp.maximum(step, num_warmup_steps) + (timescale - num_warmup_steps), timescale))
    return _warm(step, num_warmup_steps, later)


def _cosine_from_rate(
    step: Any,
    *,
    num_warmup_steps: Number,
    num_training_steps: Number,
    num_cycles: Number,
    min_lr_rate: Number = 0.0,
    warmup_lr_rate: Number | None = None,
) -> Any:
    wave = _waves(num_cycles, _part(step + 1.0, num_warmup_steps, num_training_steps))
    if warmup_lr_rate is None:
        warm = over(step + 1.0, max(1.0, num_warmup_steps))
    else:
        warm = warmup_lr_rate + (1.0 - warmup_lr_rate) * over(step, max(1, num_warmup_steps - 1))
    return jnp.where(step < num_warmup_steps, warm, jnp.maximum(0.0, wave * (1 - min_lr_rate) + min_lr_rate))


def _stable_then_decay(
    step: Any,
    *,
    num_warmup_steps: Number,
    num_stable_steps: Number,
    num_decay_steps: Number,
    warmup_type: str,
    decay_type: str,
    min_lr_ratio: Number,
    num_cycles: Number,
) -> Any:
    begin = num_warmup_steps + num_stable_steps
    up = over(jnp.minimum(step, num_warmup_steps), max(1, num_warmup_steps))
    down = over(jnp.clip(step - begin, 0, num_decay_steps), max(1, num_decay_steps))
    warm = {
        "linear": lambda: up,
        "cosine": lambda: 0.5 * (1.0 - jnp.cos(math.pi * up)),
        "1-sqrt": lambda: 1.0 - jnp.sqrt(1.0 - up),
    }[warmup_type]()
    decay = {
        "linear": lambda: 1.0 - down,
        "cosine": lambda: _waves(num_cycles, down),
        "1-sqrt": lambda: 1.0 - jnp.sqrt(down),
    }[decay_type]()
    warm, decay = (jnp.maximum(0.0, value * (1.0 - min_lr_ratio) + min_lr_ratio) for value in (warm, decay))
    later = jnp.where(step < begin, 1.0, jnp.where(step < begin + num_decay_steps, decay, min_lr_ratio))
    return jnp.where(step < num_warmup_steps, warm, later)


#: transformers.optimization's functions, whose `if` on the step can't be traced.
TRANSFORMERS: dict[str, Callable[..., Any]] = {
    "_get_constant_lambda": _constant,
    "_get_constant_schedule_with_warmup_lr_lambda": _constant_with_warmup,
    "_get_linear_schedule_with_warmup_lr_lambda": _linear,
    "_get_cosine_schedule_with_warmup_lr_lambda": _cosine,
    "_get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda": _hard_restarts,
    "_get_polynomial_decay_schedule_with_warmup_lr_lambda": _polynomial,
    "_get_inverse_sqrt_schedule_lr_lambda": _inverse_sqrt,
    "_get_cosine_with_min_lr_schedule_with_warmup_lr_rate_lambda": _cosine_from_rate,
    "_get_wsd_scheduler_lambda": _stable_then_decay,
}


def traced_factor(function: Callable[..., Any]) -> Factor:
    """`function` with a traced step.

    Raises:
        TypeError: it can't be traced.
    """
    own, keywords = function, {}
    if isinstance(function, functools.partial) and not function.args:
        own, keywords = function.func, function.keywords
    if getattr(own, "__module__", None) == "transformers.optimization":
        known = TRANSFORMERS.get(getattr(own, "__name__", ""))
        function = functools.partial(known, **keywords) if known is not None else function
    try:
        with jax.enable_x64(True):
            jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.float64))
    except Exception as error:
        raise TypeError(
            "`schedule` must take a traced step under jit: write jnp.minimum and jnp.where for min and if, or pass "
            f"steps=, how many steps the run has, to tabulate it; got {type(error).__name__} from it."
        ) from error
    return function
