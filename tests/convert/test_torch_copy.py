"""Structural copies: whatever refers to a module refers to its copy, and the original is left alone."""

import functools
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from jaxattn.convert.torch_copy import Copier, floating_as, structural_copy
from jaxattn.parity import DropoutPlan, compare


def linear() -> Any:
    return nn.Linear(3, 3)


def doubled(module: Any) -> Any:
    """Its forward is patched by a closure over the old one."""
    old = module.forward
    module.forward = lambda x: old(x) * 2
    return module


class Reference(nn.Module):
    """Calls a linear layer that it holds in some way."""

    def __init__(self, hold: Any):
        super().__init__()
        self.layer = linear()
        self.way = hold(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(x)


class Callable:
    def __init__(self, layer: Any):
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def in_weak(module: Any) -> Any:
    reference = weakref.ref(module.layer)
    return lambda x: reference()(x)  # pyright: ignore[reportOptionalCall] -- it lives


LAYER = linear()
GLOBAL: Any = LAYER.forward

WAYS = {
    "itself": lambda module: module.layer,
    "bound method": lambda module: module.layer.forward,
    "partial": lambda module: functools.partial(module.layer),
    "closure": lambda module: lambda x: module.layer(x),
    "closure over a list": lambda module: lambda x, layers=[module.layer]: layers[0](x),
    "object": lambda module: Callable(module.layer),
    "unregistered": lambda module: Callable([linear()][0]),
    "weak reference": in_weak,
    "global variable": lambda module: lambda x: GLOBAL(x),
    "patched forward": lambda module: doubled(module.layer),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_refers_to_a_module_refers_to_its_copy(way: str) -> None:
    module, x = Reference(WAYS[way]), torch.ones(2, 3)
    expected = module(x)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    copied = structural_copy(module, floating_as("float64"))
    found = copied(x.double())
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.detach(), expected.detach(), atol=1e-6)
    with torch.no_grad():
        for value in (*copied.parameters(), *copied.buffers()):
            value.zero_()
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(module(x), expected)


def test_a_module_that_holds_itself_and_what_can_t_be_copied() -> None:
    module = linear()
    module.me, module.lock, module.names = [module], threading.Lock(), {"weight": module.weight}
    copied = structural_copy(module)
    assert copied.me[0] is copied and copied.lock is module.lock and copied.names["weight"] is copied.weight
    assert type(copied) is nn.Linear and copied.weight is not module.weight


def test_shared_memory_stays_shared() -> None:
    module: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    module[1].weight = module[0].weight
    module.register_buffer("row", module[0].weight.data[2])
    copied: Any = structural_copy(module, floating_as("float64"))
    assert copied[0].weight is copied[1].weight
    copied.row.fill_(7.0)
    assert (copied[0].weight[2] == 7).all() and not (module[0].weight[2] == 7).any()
    lstm = structural_copy(nn.LSTM(3, 4), floating_as("float64"))
    assert lstm(torch.ones(2, 1, 3).double())[0].dtype == torch.float64


def test_reparametrised_and_scripted_modules() -> None:
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(linear())
    for module in (nn.utils.parametrizations.weight_norm(linear()), old, torch.jit.script(linear())):
        copied, x = structural_copy(module, floating_as("float64")), torch.ones(2, 3)
        np.testing.assert_allclose(copied(x.double()).detach(), module(x).detach(), atol=1e-6)
        assert next(iter(module.parameters())).dtype == torch.float32


def test_random_generators_are_copied_once_for_all_runs() -> None:
    module = linear()
    module.torch, module.numpy = torch.Generator().manual_seed(3), np.random.default_rng(3)
    before, generators = module.numpy.bit_generator.state, {}
    first, second = (Copier(generators=generators).copy(module) for _ in range(2))
    assert first.numpy is second.numpy is not module.numpy and first.torch is second.torch is not module.torch
    first.numpy.random()
    torch.rand(1, generator=first.torch)
    assert module.numpy.bit_generator.state == before
    assert torch.equal(module.torch.get_state(), torch.Generator().manual_seed(3).get_state())


def test_merging_leaves_the_module_in_its_mode() -> None:
    modes = []

    class Step(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            modes.extend(part.training for part in watched)
            return weight * 2

    original, watched = linear(), []
    nn.utils.parametrize.register_parametrization(original, "weight", Step())
    watched = original.parametrizations.weight
    twin = jaxattn.from_torch(original, merge=True)
    np.testing.assert_allclose(twin.kernel[...], original.weight.detach().T)
    assert modes and all(modes)


class Late(nn.Module):
    """Reaches the original where no copy can follow."""

    known: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        type(self).known = [self.layer]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.known[0].weight.to(x.dtype)


def test_a_forward_that_reaches_the_original_is_refused() -> None:
    module = Late()
    twin = jaxattn.from_torch(module.layer)
    with pytest.raises(NotImplementedError, match="reaches `layer.weight` of the original"):
        compare(module, twin, np.ones((2, 3), np.float32))


class Quiet(nn.MultiheadAttention):
    """A subclass that calls torch's forward: its dropout is inside one of torch's functions."""

    def forward(self, query: torch.Tensor, **options: Any) -> Any:
        return super().forward(query, query, query, need_weights=False, **options)[0]


def test_a_dropout_plan_reaches_into_torch_s_attention_in_one_thread_only() -> None:
    module, x = Quiet(4, 2, dropout=0.5, batch_first=True), torch.ones(1, 3, 4)
    functional: Any = nn.functional
    functions = functional.dropout, functional.scaled_dot_product_attention
    with DropoutPlan(1).on_torch(module) as masks:
        module(x)
        assert (functional.dropout, functional.scaled_dot_product_attention) == functions
        elsewhere: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: elsewhere.append(functional.dropout(torch.ones(99), 0.5)))
        thread.start()
        thread.join()
    assert {name: mask.shape for name, mask in masks.items()} == {"": (1, 2, 3, 3)}
    assert 0 < (elsewhere[0] == 0).sum() < 99
