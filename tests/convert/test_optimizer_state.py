"""A run that stops in torch goes on in JAX, and what has no exact translation is refused by name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.convert import optimizer, optimizer_state
from jaxattn.convert.rules import Pack, Rule
from jaxattn.layers import linear as linear_layer

from ..inputs import generator, randomise

D, F = 6, 5
X = generator("optimizer state").standard_normal((3, 4, D))


class Packed(nnx.Module):
    """Holds two layers of torch as one kernel, and a third as it is."""

    def __init__(self, rngs: nnx.Rngs):
        self.both = nnx.Param(rngs.normal((2 * F, D)))
        self.last = linear_layer(F, D, use_bias=False, rngs=rngs)

    def __call__(self, x):
        first, second = jnp.split(x @ self.both[...].T, 2, axis=-1)
        return self.last(first * second)

    def torch_rules(self):
        return [Rule(("first.weight", "second.weight"), "both", Pack(2))]


class TorchPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, F, bias=False), nn.Linear(D, F, bias=False)
        self.last = nn.Linear(F, D, bias=False)

    def forward(self, x):
        return self.last(self.first(x) * self.second(x))


def packed() -> Any:
    return randomise(TorchPacked(), "packed").double()


def twin_of(module: nn.Module) -> nnx.Module:
    """Packed with the weights of the torch module, in float64; call it with 64-bit types on."""
    twin = Packed(nnx.Rngs(0))
    twin = nnx.merge(nnx.graphdef(twin), jax.tree.map(lambda p: p.astype(jnp.float64), nnx.state(twin)))
    jaxattn.load_state_dict(twin, module.state_dict())
    return twin


def torch_steps(module: nn.Module, torch_optimizer: Any, count: int, scheduler: Any = None, clip: float | None = None):
    for _ in range(count):
        torch_optimizer.zero_grad()
        ((module(torch.from_numpy(X)) - 1.0) ** 2).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        torch_optimizer.step()
        if scheduler is not None:
            scheduler.step()


def loss(module: Any) -> jax.Array:
    return ((module(X) - 1.0) ** 2).mean()


def two_groups(module: Any, kind: Any, **options: Any) -> Any:
    first = {"params": [module.first.weight, module.second.weight], "lr": 0.1}
    return kind([first, {"params": [module.last.weight], "weight_decay": 0.2}], lr=0.03, **options)


KINDS: list[Callable[[Any], Any]] = [
    lambda module: two_groups(module, torch.optim.SGD, momentum=0.9),
    lambda module: two_groups(module, torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda module: two_groups(module, torch.optim.Adam, weight_decay=0.1),
    lambda module: two_groups(module, torch.optim.AdamW, betas=(0.8, 0.9)),
    lambda module: two_groups(module, torch.optim.SGD, momentum=0.9, dampening=0.3),
    lambda module: two_groups(module, torch.optim.Adam, amsgrad=True, betas=(0.5, 0.6)),
    lambda module: two_groups(module, torch.optim.NAdam, betas=(0.8, 0.9)),
    lambda module: two_groups(module, torch.optim.NAdam, decoupled_weight_decay=True, momentum_decay=0.1),
    lambda module: two_groups(module, torch.optim.RMSprop, alpha=0.8),
    lambda module: two_groups(module, torch.optim.RMSprop, centered=True, momentum=0.7, eps=0.1),
    lambda module: two_groups(module, torch.optim.Adagrad, lr_decay=0.3, initial_accumulator_value=0.1),
]
NAMES = [
    "momentum",
    "nesterov",
    "Adam",
    "AdamW",
    "dampening",
    "amsgrad",
    "NAdam",
    "NAdamW",
    "RMSprop",
    "centered",
    "Adagrad",
]


@pytest.mark.parametrize("made", [5, 0])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_five_steps_of_torch_and_five_of_jax_are_ten_of_torch(make, made: int) -> None:
    """Through nnx.Optimizer; with made=0 all is as at the start."""
    module = packed()
    torch_optimizer = make(module)
    torch_steps(module, torch_optimizer, made)
    with jax.enable_x64(True):
        twin = twin_of(module)
        tx = optimizer(torch_optimizer, module, twin)
        state = optimizer_state(torch_optimizer, module, twin)
        assert jax.tree.structure(state) == jax.tree.structure(tx.init(nnx.state(twin, nnx.Param)))
        ours = nnx.Optimizer(twin, tx, wrt=nnx.Param)
        nnx.update(ours.opt_state, nnx.state(state))

        @nnx.jit
        def step(twin: nnx.Module, ours: nnx.Optimizer) -> None:
            ours.update(twin, nnx.grad(loss)(twin))

        for _ in range(5):
            step(twin, ours)
        got = jaxattn.state_dict(twin)
    torch_steps(module, torch_optimizer, 5)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(got[name], value.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_schedule_and_clipping_go_on(kind: str) -> None:
    """The count of the schedule is Adam's own, or the scheduler's; plain optax loop, one group."""
    module = packed()
    torch_optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch_optimizer, lambda step: 1.0 / (1.0 + step))
    torch_steps(module, torch_optimizer, 3, scheduler, clip=0.1)
    with jax.enable_x64(True):
        twin = twin_of(module)
        given: Any = (torch_optimizer, module, twin)
        options: Any = {"schedule": scheduler, "clip_norm": 0.1}
        tx, state = optimizer(*given, **options), optimizer_state(*given, **options)
        if kind == "AdamW":
            by_function = optimizer_state(*given, **(options | {"schedule": lambda step: 1.0 / (1.0 + step)}))
            assert str(by_function) == str(state)
        params, graphdef = nnx.state(twin, nnx.Param), nnx.graphdef(twin)
        gradient = jax.jit(jax.grad(lambda params: loss(nnx.merge(graphdef, params))))
        for _ in range(3):
            updates, state = tx.update(gradient(params), state, params)
            params = optax.apply_updates(params, updates)
        got = jaxattn.state_dict(params, like=twin)
    torch_steps(module, torch_optimizer, 3, scheduler, clip=0.1)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(got[name], value.numpy(), rtol=0, atol=1e-14)


def test_moments_lie_where_the_parameters_lie() -> None:
    module = packed()
    torch_optimizer = two_groups(module, torch.optim.Adam)
    torch_steps(module, torch_optimizer, 2)
    with jax.enable_x64(True):
        state: Any = optimizer_state(torch_optimizer, module, twin_of(module))
        first, second = state.inner_states["0"].inner_state[0], state.inner_states["1"].inner_state[1]
    moments = torch_optimizer.state
    both = [moments[p]["exp_avg_sq"].numpy() for p in (module.first.weight, module.second.weight)]
    np.testing.assert_array_equal(first.nu["both"][...], np.concatenate(both))
    np.testing.assert_array_equal(second.mu["last"]["kernel"][...], moments[module.last.weight]["exp_avg"].numpy().T)
    assert int(first.count) == int(second.count) == 2


def linear() -> tuple[nn.Linear, nnx.Module]:
    module = nn.Linear(D, F)
    return module, jaxattn.from_torch(module)


def sgd(**options) -> Callable[[nn.Module], Any]:
    return lambda module: torch.optim.SGD(module.parameters(), lr=0.1, **options)


def adam(**options) -> Callable[[nn.Module], Any]:
    return lambda module: torch.optim.Adam(module.parameters(), **options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (sgd(maximize=True), "`maximize` has no exact translation .*negate the loss"),
        (adam(differentiable=True), "`differentiable` has no exact translation"),
        (lambda m: torch.optim.RAdam(m.parameters()), "one of SGD, Adam, AdamW, .* got torch.optim.radam.RAdam"),
    ],
)
def test_refused_by_name(make, sentence: str) -> None:
    module, twin = linear()
    with pytest.raises(NotImplementedError, match=sentence):
        optimizer(make(module), module, twin)
    with pytest.raises(NotImplementedError, match=sentence):
        optimizer_state(make(module), module, twin)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "RMSprop"])
def test_cycles_of_the_momentum_go_on(kind: str) -> None:
    """OneCycleLR moves momentum, or the first beta; torch corrects the bias by the beta of now."""
    module = packed()
    options = {"momentum": 0.9} if kind in {"SGD", "RMSprop"} else {}
    torch_optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(torch_optimizer, 0.01, total_steps=9, base_momentum=0.5)
    torch_steps(module, torch_optimizer, 3, scheduler)
    with jax.enable_x64(True):
        twin = twin_of(module)
        given: Any = (torch_optimizer, module, twin)
        tx, state = optimizer(*given, schedule=scheduler), optimizer_state(*given, schedule=scheduler)
        params, graphdef = nnx.state(twin, nnx.Param), nnx.graphdef(twin)
        step = jax.jit(lambda p, s: tx.update(jax.grad(lambda p: loss(nnx.merge(graphdef, p)))(p), s, p))
        for _ in range(5):
            updates, state = step(params, state)
            params = optax.apply_updates(params, updates)
        got = jaxattn.state_dict(params, like=twin)
    torch_steps(module, torch_optimizer, 5, scheduler)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(got[name], value.numpy(), rtol=0, atol=1e-14)


def test_wrong_parameters() -> None:
    module, twin = linear()
    with pytest.raises(ValueError, match=r"must be those of `torch_module`, got one of shape \(5, 6\) in group 0"):
        optimizer(sgd()(linear()[0]), module, twin)
    with pytest.raises(ValueError, match="`unused` must be names of torch's parameters, got wieght"):
        optimizer(sgd()(module), module, twin, unused=["wieght"])
    plain = nn.Linear(D, F, bias=False)
    with pytest.raises(ValueError, match="`bias` must have torch's bias, got none"):
        optimizer(sgd()(plain), plain, twin)
    partial = jaxattn.from_torch(nn.Linear(D, F, bias=False))
    with pytest.raises(ValueError, match=r"must have a Flax parameter that trains \(nnx.Param\), got none for bias"):
        optimizer(sgd()(module), module, partial)
    other = packed()
    parts = torch.optim.SGD([{"params": [other.first.weight]}, {"params": [other.second.weight, other.last.weight]}])
    with pytest.raises(ValueError, match="one group, got `first.weight`: 0, `second.weight`: 1 for `both`"):
        optimizer(parts, other, Packed(nnx.Rngs(0)))


def test_state_that_has_no_place_in_optax() -> None:
    module, twin = linear()
    given = adam()(module)
    module(torch.ones(D)).sum().backward()
    given.step()
    module.bias.grad = None
    given.step()
    with pytest.raises(ValueError, match="counts steps once a group, got `bias`: 1, `kernel`: 2"):
        optimizer_state(given, module, twin)
    with pytest.raises(
        jaxattn.ConversionError, match=r"`exp_avg` must be as .*`kernel`: float32 \(5, 6\), got float64"
    ):
        double = packed().last
        made = adam()(double)
        double(torch.ones(F, dtype=torch.float64)).sum().backward()
        made.step()
        narrow = nn.Linear(F, D, bias=False)
        optimizer_state(made, double, jaxattn.from_torch(narrow))
    stepped = sgd(momentum=0.9)(module)
    module(torch.ones(D)).sum().backward()
    stepped.step()
    with pytest.raises(ValueError, match="SGD counts no steps: pass step="):
        optimizer_state(stepped, module, twin, schedule=lambda step: 1.0)
    state = optimizer_state(stepped, module, twin, schedule=lambda step: 1.0, step=7)
    assert [int(leaf) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.int32] == [7]


def test_a_parameter_that_never_had_a_gradient_is_left_alone() -> None:
    """torch keeps no state for it, and doesn't decay it."""
    module, twin = linear()
    module.bias.requires_grad_(True)
    given = torch.optim.AdamW(module.parameters(), weight_decay=0.5)
    torch.autograd.backward(module(torch.ones(D)).sum(), inputs=[module.weight])
    given.step()
    params = nnx.state(twin, nnx.Param)
    for unused in ((), ("bias",)):
        tx = optimizer(given, module, twin, unused=unused)
        state = optimizer_state(given, module, twin, unused=unused)
        updates: Any = tx.update(jax.tree.map(jnp.ones_like, params), state, params)[0]
        assert not np.any(updates["bias"][...]) and np.all(updates["kernel"][...])
