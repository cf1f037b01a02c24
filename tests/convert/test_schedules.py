"""Learning rates and momenta in every step are those that torch's schedulers really set."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from torch.optim import lr_scheduler as torch_lr

from jaxattn.convert import schedules
from jaxattn.convert.schedules import courses_of

STEPS, MADE = 260, 45
#: Relative; torch multiplies the last learning rate, the closed forms don't.
TOLERANCE = 1e-12
#: Each group's.
BASES = (0.1, 0.003)

Make = Callable[[Any], Any]


def sgd(bases: tuple[float, ...] = BASES, **options: Any) -> Any:
    groups: list[dict[str, Any]] = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in bases]
    return torch.optim.SGD(groups, lr=bases[0], momentum=0.9, **options)


def adam() -> Any:
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in BASES], lr=BASES[0])


def torch_rates(optimizer: Any, scheduler: Any, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(learning rates, momenta) of each group in this and the following steps."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            momenta = [
                group["momentum"] if "momentum" in group else group["betas"][0] for group in optimizer.param_groups
            ]
            found.append(([float(group["lr"]) for group in optimizer.param_groups], momenta))
            if _ + 1 < steps:
                scheduler.step()
    rates, momenta = zip(*found, strict=True)
    return np.array(rates).T, np.array(momenta).T


def ours(functions: list[Any], steps: np.ndarray) -> np.ndarray:
    counts = jnp.asarray(steps, jnp.int32)
    return np.array(jax.jit(lambda counts: jnp.array([jax.vmap(function)(counts) for function in functions]))(counts))


def sequence(*parts: Make, milestones: list[int]) -> Make:
    return lambda opt: torch_lr.SequentialLR(opt, [part(opt) for part in parts], milestones)


CLOSED: dict[str, Make] = {
    "StepLR": lambda opt: torch_lr.StepLR(opt, 7, 0.5),
    "MultiStepLR": lambda opt: torch_lr.MultiStepLR(opt, [0, 3, 3, 50, 201], 0.3),
    "ConstantLR": lambda opt: torch_lr.ConstantLR(opt, 0.3, 11),
    "LinearLR": lambda opt: torch_lr.LinearLR(opt, 0.3, 0.9, 29),
    "LinearLR down": lambda opt: torch_lr.LinearLR(opt, 1.0, 0.1, 250),
    "LinearLR to 0": lambda opt: torch_lr.LinearLR(opt, 1 / 3, 0.0, 5),
    "ExponentialLR": lambda opt: torch_lr.ExponentialLR(opt, 0.97),
    "PolynomialLR": lambda opt: torch_lr.PolynomialLR(opt, 203, 2.5),
    "CosineAnnealingLR": lambda opt: torch_lr.CosineAnnealingLR(opt, 37, 1e-5),
    "CosineAnnealingLR to 0": lambda opt: torch_lr.CosineAnnealingLR(opt, 61),
    "CosineAnnealingLR by halves": lambda opt: torch_lr.CosineAnnealingLR(opt, 10.5),  # pyright: ignore[reportArgumentType] -- torch takes it
    "CosineAnnealingWarmRestarts": lambda opt: torch_lr.CosineAnnealingWarmRestarts(opt, 13, 1, 1e-4),
    "CosineAnnealingWarmRestarts longer": lambda opt: torch_lr.CosineAnnealingWarmRestarts(opt, 5, 2),
    "OneCycleLR": lambda opt: torch_lr.OneCycleLR(opt, [0.3, 0.01], total_steps=STEPS),
    "OneCycleLR in three": lambda opt: torch_lr.OneCycleLR(
        opt, 0.3, epochs=13, steps_per_epoch=20, three_phase=True, anneal_strategy="linear", base_momentum=0.7
    ),
    "CyclicLR": lambda opt: torch_lr.CyclicLR(opt, [1e-3, 1e-2], 0.1, 7, 19),
    "CyclicLR halving": lambda opt: torch_lr.CyclicLR(opt, 1e-3, 0.1, 10, mode="triangular2", cycle_momentum=False),
    "CyclicLR decaying": lambda opt: torch_lr.CyclicLR(opt, 1e-3, 0.1, 3, mode="exp_range", gamma=0.99),
    "LambdaLR": lambda opt: torch_lr.LambdaLR(opt, [lambda step: 0.9 ** (step // 30), lambda step: 1 / (1 + step)]),
    "SequentialLR": sequence(
        lambda opt: torch_lr.LinearLR(opt, 0.01, total_iters=20),
        lambda opt: torch_lr.CosineAnnealingLR(opt, 150),
        lambda opt: torch_lr.LambdaLR(opt, lambda step: 0.1 + step / 1000),
        milestones=[20, 160],
    ),
    "SequentialLR of steps": sequence(
        lambda opt: torch_lr.ConstantLR(opt, 0.1, 9),
        lambda opt: torch_lr.CosineAnnealingWarmRestarts(opt, 30),
        lambda opt: torch_lr.MultiStepLR(opt, [0, 4]),
        milestones=[5, 99],
    ),
    "ChainedScheduler": lambda opt: torch_lr.ChainedScheduler(
        [torch_lr.LinearLR(opt, 0.1, total_iters=30), torch_lr.ExponentialLR(opt, 0.99), torch_lr.StepLR(opt, 50)]
    ),
}
WARM: dict[str, Make] = {
    "constant": transformers.get_constant_schedule,
    "constant with warmup": lambda opt: transformers.get_constant_schedule_with_warmup(opt, 20),
    "linear": lambda opt: transformers.get_linear_schedule_with_warmup(opt, 20, 200),
    "linear at once": lambda opt: transformers.get_linear_schedule_with_warmup(opt, 0, 200),
    "cosine": lambda opt: transformers.get_cosine_schedule_with_warmup(opt, 20, 200),
    "hard restarts": lambda opt: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(opt, 20, 200, 3),
    "polynomial": lambda opt: transformers.get_polynomial_decay_schedule_with_warmup(opt, 20, 200, 1e-5, 2.0),
    "inverse root": lambda opt: transformers.get_inverse_sqrt_schedule(opt, 20),
    "cosine to a minimum": lambda opt: transformers.get_scheduler(
        "cosine_with_min_lr", opt, 20, 200, {"min_lr_rate": 0.1}
    ),
    "cosine from a rate": lambda opt: transformers.get_scheduler(
        "cosine_warmup_with_min_lr", opt, 20, 200, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.05}
    ),
    "stable": lambda opt: transformers.get_wsd_schedule(opt, 20, 50, num_stable_steps=99, min_lr_ratio=0.1),
    "stable, roots": lambda opt: transformers.get_wsd_schedule(
        opt, 20, 50, 200, warmup_type="cosine", decay_type="1-sqrt"
    ),
}


@pytest.mark.parametrize("make", [*CLOSED.values(), *WARM.values()], ids=[*CLOSED, *WARM])
def test_every_step_is_torchs(make: Make) -> None:
    """Of two groups; the closed forms are taken in the middle, from where the scheduler stands. Momenta too."""
    optimizer = sgd()
    scheduler = make(optimizer)
    early = torch_rates(optimizer, scheduler, MADE + 1)
    before = copy.deepcopy(optimizer.state_dict()), scheduler.state_dict().get("last_epoch")
    with jax.enable_x64(True):
        courses: Any = courses_of(optimizer, scheduler)
        cycled = [course.momentum for course in courses if course.momentum is not None]
        got = ours([course.rate for course in courses] + cycled, np.arange(STEPS))
    assert (optimizer.state_dict(), scheduler.state_dict().get("last_epoch")) == before
    late = torch_rates(optimizer, scheduler, STEPS - MADE)
    rates, momenta = (np.concatenate([a[:, :MADE], b], axis=1) for a, b in zip(early, late, strict=True))
    assert len(np.unique(momenta)) > 5 if cycled else (momenta == momenta[:, :1]).all()
    np.testing.assert_allclose(got, np.concatenate([rates, momenta]) if cycled else rates, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda opt: torch_lr.LambdaLR(opt, lambda step: math.cos(step) if step < 9 else 0.5),
        lambda opt: torch_lr.MultiplicativeLR(opt, lambda step: 0.9 if step % 3 else 1.1),
        lambda opt: torch_lr.CyclicLR(opt, 1e-3, 0.1, 3, scale_fn=lambda x: math.sin(x), base_momentum=0.1),
        lambda opt: torch_lr.ChainedScheduler([torch_lr.CosineAnnealingLR(opt, 7), torch_lr.ExponentialLR(opt, 0.9)]),
        sequence(lambda opt: torch_lr.OneCycleLR(opt, 0.1, 9), lambda opt: torch_lr.StepLR(opt, 3), milestones=[8]),
    ],
)
def test_what_has_no_closed_form_is_tabulated(make: Make) -> None:
    """By a copy of torch's scheduler; nothing is made up before and beyond the table."""
    optimizer, made, steps = sgd(), 4, 20
    scheduler = make(optimizer)
    torch_rates(optimizer, scheduler, made + 1)
    with pytest.raises((TypeError, NotImplementedError), match=r"[Pp]ass steps="):
        courses_of(optimizer, scheduler)
    with jax.enable_x64(True):
        courses: Any = courses_of(optimizer, scheduler, steps)
        got = ours([course.rate for course in courses], np.arange(made - 1, steps + 2))
        cycled = [course.momentum for course in courses if course.momentum is not None]
        momenta = ours(cycled, np.arange(made, steps)) if cycled else None
    wanted, wanted_momenta = torch_rates(optimizer, scheduler, steps - made)
    np.testing.assert_array_equal(got[:, 1:-2], wanted)
    assert np.isnan(got[:, [0, -2, -1]]).all()
    if momenta is not None:
        np.testing.assert_array_equal(momenta, wanted_momenta)
    with pytest.raises(ValueError, match=f"more than the {steps - 1} that `schedule` has made, got 4"):
        courses_of(optimizer, scheduler, made)


def test_a_function_of_ones_own() -> None:
    """Traced if it can be, whatever `steps` says; else tabulated; NaN beyond the table."""
    optimizer = sgd()
    traced = schedules(optimizer, lambda step: 0.5**step, steps=3)
    assert [float(rate(40)) for rate in traced] == pytest.approx([base * 0.5**40 for base in BASES], rel=1e-6)
    table = schedules(optimizer, lambda step: [1.0, 0.5, 0.25][int(step)], steps=3)[0]
    assert [float(table(count)) for count in range(3)] == pytest.approx([0.1, 0.05, 0.025], rel=1e-6)
    assert all(np.isnan(float(table(count))) for count in (-1, 3, 10**6))
    with pytest.raises(
        ValueError, match="every step before steps=4, got IndexError at step 3: list index out of range"
    ):
        schedules(optimizer, lambda step: [1.0, 0.5, 0.25][int(step)], steps=4)
    with pytest.raises(TypeError, match="jnp.minimum .* or pass steps="):
        schedules(optimizer, lambda step: min(step, 1.0))


def test_float32_parameters_get_the_float64_rate_rounded() -> None:
    """The last steps of a cosine are the difference of two numbers near 1: float32 would have 2 % of error there."""
    optimizer = sgd((0.1,))
    scheduler = torch_lr.CosineAnnealingLR(optimizer, 1000)
    rate = schedules(optimizer, scheduler)[0]
    count = jnp.arange(1002, dtype=jnp.int32)
    got = jax.jit(jax.vmap(rate))(count)
    assert got.dtype == jnp.float32 and rate(jnp.int32(5)).dtype == jnp.float32
    np.testing.assert_allclose(got[None], torch_rates(optimizer, scheduler, 1002)[0], rtol=6e-8, atol=0)


def test_onecycle_beyond_its_end() -> None:
    """torch raises there."""
    optimizer = sgd((0.1,))
    scheduler = torch_lr.OneCycleLR(optimizer, 0.1, total_steps=9)
    assert np.isnan(float(schedules(optimizer, scheduler)[0](10))) and float(schedules(optimizer, scheduler)[0](9)) > 0


def test_refused_by_name() -> None:
    optimizer = sgd()
    with pytest.raises(NotImplementedError, match="ReduceLROnPlateau, which watches a metric"):
        schedules(optimizer, torch_lr.ReduceLROnPlateau(optimizer), steps=5)
    with pytest.raises(ValueError, match="a scheduler of `torch_optimizer`, got one of another optimizer"):
        schedules(optimizer, torch_lr.StepLR(sgd(), 3))
    with pytest.raises(ValueError, match="has a learning-rate scheduler, got schedule=None"):
        stepped = sgd()
        torch_lr.StepLR(stepped, 3)
        schedules(stepped, None)
    with pytest.raises(NotImplementedError, match="SequentialLR whose milestones don't increase from 1, "):
        ones: list[torch_lr.LRScheduler] = [torch_lr.StepLR(optimizer, 3), torch_lr.StepLR(optimizer, 3)]
        schedules(optimizer, torch_lr.SequentialLR(optimizer, ones, [0]))


def test_a_rate_that_something_else_changed() -> None:
    """By hand, or by a second scheduler: torch would go on from what no closed form knows."""
    by_hand, twice = sgd(), sgd()
    scheduler = torch_lr.StepLR(by_hand, 3)
    by_hand.param_groups[1]["lr"] = 0.7
    with pytest.raises(ValueError, match=r"Only `schedule` may change the optimizer's lr, got 0.7 in group 1 where"):
        schedules(by_hand, scheduler)
    first = torch_lr.LinearLR(twice, 0.5)
    torch_lr.ConstantLR(twice, 0.5)
    with pytest.raises(ValueError, match="pass the scheduler that all others are part of"):
        schedules(twice, first)
