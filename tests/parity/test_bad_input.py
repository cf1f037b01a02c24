"""What can't be compared is said clearly."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.layers import linear as linear_layer
from jaxattn.parity import compare, train

from ..errors import refuses

B, T, D = 3, 5, 6


@pytest.fixture
def linear(randomised) -> tuple[Any, Any]:
    module = randomised(nn.Linear(D, D))
    return module, jaxattn.from_torch(module)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class Scalar(nn.Module):
    def forward(self, x):
        return (x**2).sum()


class FlaxScalar(nnx.Module):
    def __call__(self, x):
        return (x**2).sum()


def test_an_output_without_axes(draw) -> None:
    compare(Scalar(), FlaxScalar(), draw(B, D)).assert_ok()


def test_nan_inputs_are_reported_as_such(linear: tuple[Any, Any], draw) -> None:
    x = draw(B, D)
    x[1, 2:4] = np.nan
    report = compare(*linear, x)
    row = report.row("NaN in the inputs")
    assert not report.ok and report.failed == (row,)
    assert row.verdict.startswith("`input` holds NaN at 2 of 18 places; it reaches `output`, `gradient of weight` in")
    assert "NaN" in str(report)


class Masked(nn.Module):
    def forward(self, x, keep):
        return torch.where(keep, x, 0.0)


class FlaxMasked(nnx.Module):
    def __call__(self, x, keep):
        return jnp.where(keep, x, 0.0)


def test_nan_that_reaches_nothing_is_no_failure(draw) -> None:
    x = draw(B, D)
    x[1] = np.nan
    report = compare(Masked(), FlaxMasked(), x, np.arange(B)[:, None] != 1)
    report.assert_ok()
    assert report.row("NaN in the inputs").ok


def test_randomness_that_torch_does_not_know_is_found_by_running_twice(draw) -> None:
    rng = np.random.default_rng(0)

    class Noisy(nn.Module):
        def forward(self, x):
            return x * (1.0 + 1e-6 * rng.random())

    with pytest.raises(ValueError, match=r"must be deterministic, got two float64 runs .* `output` \(.* > 1"):
        compare(Noisy(), FlaxScalar(), draw(B, D))


@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array([1j]), np.array([object()])])
def test_arrays_that_are_no_numbers(value, linear: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="real numbers or booleans, got .* for `input`"):
        compare(*linear, value)


def test_shapes_that_differ_between_sides(draw) -> None:
    class Short(nnx.Module):
        def __call__(self, x):
            return x[:, 1:]

    with pytest.raises(ValueError, match=r"same shapes, got `output` torch \(3, 6\), Flax \(3, 5\)"):
        compare(nn.Identity(), Short(), draw(B, D))


@pytest.mark.parametrize("call", [compare, lambda ours, theirs: train(ours, theirs, sgd, [])])
def test_modules_of_the_wrong_kind(call, linear: tuple[Any, Any]) -> None:
    module, twin = linear
    with refuses(TypeError, "takes a torch.nn.Module and then a flax nnx.Module, got Linear and Linear"):
        call(twin, module)
    with refuses(TypeError, "got function and Linear"):
        call(sgd, twin)


def test_training_refuses_active_dropout_without_a_plan(draw) -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5))
    with pytest.raises(ValueError, match="in training mode .* `1` .* pass dropout=jaxattn.parity.DropoutPlan"):
        train(module, jaxattn.from_torch(nn.Linear(D, D)), sgd, [draw(B, D)])


def test_a_refusal_leaves_torchs_randomness_as_it_was(draw) -> None:
    module = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5)).eval()
    twin, before = jaxattn.from_torch(module), torch.get_rng_state()
    with pytest.raises(ValueError, match="Dropout must be off"):
        compare(module.train(), twin, draw(B, D))
    assert torch.equal(torch.get_rng_state(), before)


def test_training_arguments(linear: tuple[Any, Any], draw) -> None:
    with pytest.raises(ValueError, match="`data` must hold the arguments of one step at least"):
        train(*linear, sgd, [])
    with pytest.raises(ValueError, match=r"must be \(arguments …, target\), got one value"):
        train(*linear, sgd, [draw(B, D)], loss=lambda output, target: output.sum())
    with refuses(TypeError, "a function or a pair"):
        train(*linear, sgd, [draw(B, D)], loss=(1, 2))  # pyright: ignore[reportArgumentType] -- that is the point
    with pytest.raises(TypeError, match="must be a torch optimizer or a function .*, got str"):
        train(*linear, "SGD", [draw(B, D)])
    with pytest.raises(TypeError, match="real numbers or booleans, got complex128"):
        train(*linear, sgd, [np.array([1j])])
    with pytest.raises(NotImplementedError, match="got torch.optim.rprop.Rprop"):
        train(*linear, torch.optim.Rprop, [draw(B, D)])
    hooked = sgd(linear[0].parameters())
    hooked.register_step_post_hook(lambda *args: None)
    with pytest.raises(NotImplementedError, match=r"Hooks around .* steps have no translation, got .*lambda"):
        train(*linear, hooked, [draw(B, D)])


def test_data_of_another_structure(randomised, draw) -> None:
    class Optional(nn.Linear):
        def forward(self, x, y=None):
            return super().forward(x if y is None else x + y)

    module = randomised(Optional(D, D))
    twin = jaxattn.from_torch(nn.Linear(D, D))
    with pytest.raises(ValueError, match=r"arguments of the first one.*\('x', 'y'\) after \('x',\)"):
        train(module, twin, sgd, [draw(B, D), (draw(B, D), draw(B, D))])


def test_a_gradient_in_some_steps_only(randomised, draw) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            return self.sometimes(self.always(x)) if x.shape[0] == B else self.always(x)

    class FlaxSometimes(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.always, self.sometimes = (linear_layer(D, D, rngs=rngs) for _ in range(2))

        def __call__(self, x):
            return self.sometimes(self.always(x)) if x.shape[0] == B else self.always(x)

    module, twin = randomised(Sometimes()), FlaxSometimes(nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    with pytest.raises(ValueError, match="every step or in none.* only for `sometimes.bias`, `sometimes.weight`"):
        train(module, twin, sgd, [draw(B, D), draw(T, D)], tx=optax.sgd(0.1))


@pytest.mark.parametrize("check", [compare, lambda *given, **how: train(given[0], given[1], sgd, [given[2]], **how)])
def test_a_seed_instead_of_a_plan_is_an_error(check, randomised, draw) -> None:
    module = randomised(nn.Linear(D, D))
    with refuses(TypeError, "`dropout` must be a parity.DropoutPlan"):
        check(module, jaxattn.from_torch(module), draw(B, D), dropout=3)
