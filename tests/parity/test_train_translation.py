"""Each row of the translation from torch.optim to optax, and what the nearest wrong row would do."""

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jaxattn.parity import train

from .training import DATA, STEPS, adam, adamw, from_step, halving, linear, sgd


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (sgd(), {"clip_norm": 0.1}),
        (sgd(momentum=0.9, weight_decay=0.3), {}),
        (sgd(momentum=0.8, weight_decay=0.3, nesterov=True), {"schedule": halving}),
        (adam(betas=(0.7, 0.9), eps=1e-3, weight_decay=0.2), {}),
        (adam(), {"clip_norm": 1e3}),
        (adamw(), {"schedule": halving, "clip_norm": 0.1}),
        (adamw(weight_decay=0.0), {}),
        (lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)), {}),
        (sgd(momentum=0.9, dampening=0.4), {}),
        (adam(amsgrad=True, betas=(0.3, 0.4)), {}),
        (lambda parameters: torch.optim.NAdam(parameters, 0.01), {}),
        (lambda parameters: torch.optim.RMSprop(parameters, 0.01, centered=True, momentum=0.5), {}),
        (lambda parameters: torch.optim.Adagrad(parameters, 0.1, lr_decay=0.2), {}),
        (sgd(), {"schedule": lambda step: math.exp(-step)}),
    ],
)
def test_the_translation_makes_the_same_steps(optimizer, options, randomised) -> None:
    report = train(*linear(randomised), optimizer, DATA, **options)
    report.assert_ok()
    assert len(report.steps) == STEPS and report.first is None
    assert max(step.parameter_error for step in report.steps) < 1e-13
    assert report.steps[0].torch_loss > report.steps[-1].torch_loss > 0


def decayed_after(momentum: float, decay: float) -> optax.GradientTransformation:
    return optax.chain(optax.trace(momentum), optax.add_decayed_weights(decay), optax.scale(-0.1))


UNCORRECTED = optax.chain(optax.scale_by_rms(0.999, 1e-8, eps_in_sqrt=False), optax.scale(-0.01))


@pytest.mark.parametrize(
    ("optimizer", "options", "tx", "first"),
    [
        pytest.param(adamw(), {}, optax.adamw(0.01), 0, id="decay 1e-4 for 0.01"),
        pytest.param(adamw(), {}, optax.adamw(0.01, weight_decay=0.01), None, id="decay given"),
        pytest.param(adam(weight_decay=0.3), {}, optax.adamw(0.01, weight_decay=0.3), 0, id="decoupled for coupled"),
        pytest.param(sgd(momentum=0.9, weight_decay=0.3), {}, decayed_after(0.9, 0.3), 1, id="decay after"),
        pytest.param(
            sgd(), {"clip_norm": 0.1}, optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)), 0, id="optax's clip"
        ),
        pytest.param(adam(), {}, optax.adam(0.01, eps=1e-6), 0, id="epsilon"),
        pytest.param(adam(), {}, optax.adam(0.01, eps=0.0, eps_root=1e-8), 0, id="epsilon inside the root"),
        pytest.param(adam(betas=(0.0, 0.999)), {}, UNCORRECTED, 0, id="no bias correction"),
        pytest.param(adam(), {}, optax.adam(0.01, b2=0.99), 1, id="second beta"),
        pytest.param(sgd(momentum=0.9), {}, optax.sgd(0.1, 0.9, nesterov=True), 0, id="nesterov"),
        pytest.param(sgd(), {}, optax.sgd(from_step(2, 0.1, 0.11)), 2, id="schedule from step 2"),
        pytest.param(sgd(momentum=0.9, dampening=0.5), {}, optax.sgd(0.1, 0.9), 1, id="dampening"),
        pytest.param(adam(amsgrad=True, betas=(0.3, 0.4)), {}, optax.amsgrad(0.01, 0.3, 0.4), 1, id="amsgrad"),
    ],
)
def test_what_differs_is_found_at_its_step(optimizer, options, tx, first: int | None, randomised) -> None:
    report = train(*linear(randomised), optimizer, DATA, tx=tx, **options)
    assert report.first == first
    if first is not None:
        assert all(step.parameter_error < 1e-13 for step in report.steps[:first])
        assert all(problem.startswith("after the update `") for problem in report.problems), report.problems
        with pytest.raises(AssertionError, match=f"part at step {first}"):
            report.assert_ok()


def test_optax_schedules_are_float32_unless_the_count_is_float64(randomised) -> None:
    schedule = optax.warmup_cosine_decay_schedule(0.1, 1.0, 2, 7)
    inexact = optax.chain(optax.scale_by_schedule(schedule), optax.scale(-0.1))
    exact = optax.chain(optax.scale_by_schedule(lambda count: schedule(jnp.asarray(count, float))), optax.scale(-0.1))

    def factor(step):
        cosine = 0.5 * (1 + np.cos(np.pi * max(step - 2, 0) / 5))
        return min(0.1 + 0.45 * step, 1.0) * cosine

    pair = linear(randomised)
    errors = {}
    for name, tx in (("inexact", inexact), ("exact", exact)):
        report = train(*pair, sgd(), DATA, tx=tx, schedule=factor)
        errors[name] = max(step.parameter_error for step in report.steps)
    assert errors["exact"] < 1e-15 < 1e-10 < errors["inexact"] < 1e-7


def test_a_live_scheduler_goes_on_in_both(randomised) -> None:
    """torch runs a copy of the scheduler itself, JAX its closed form; neither the scheduler nor its optimizer moves."""
    module, twin = linear(randomised)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 2, base_momentum=0.2)
    optimizer.step()
    scheduler.step()
    rate, count = scheduler.get_last_lr(), scheduler.last_epoch
    train(module, twin, optimizer, DATA, schedule=scheduler).assert_ok()
    assert (scheduler.get_last_lr(), scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (rate, count, rate[0])
    wrong = train(module, twin, optimizer, DATA, schedule=scheduler, tx=optax.sgd(float(rate[0]), 0.5))
    assert wrong.first is not None
    with pytest.raises(ValueError, match="a scheduler of `torch_optimizer`, got one of another"):
        train(module, twin, sgd(), DATA, schedule=scheduler)
