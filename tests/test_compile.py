"""jaxattn.compile: the eager result from one jitted call, never with stale weights or attributes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxattn
from jaxattn.core.dot_product import AttentionOutput
from jaxattn.structure import Watch

from .capturing import B, D, T, draw, make, make_attention, make_encoder
from .compiling import Counted, assert_same


def test_it_computes_what_the_module_computes():
    encoder, attention, x = make_encoder(), make_attention(), draw(B, T, D)
    assert_same(jaxattn.compile(encoder)(x), encoder(x))
    result = jaxattn.compile(attention)(x, mask=np.tri(T, dtype=bool))
    assert isinstance(result, AttentionOutput)
    assert_same(result, attention(x, mask=np.tri(T, dtype=bool)))


def test_it_has_the_signature_of_the_module_and_tells_about_itself():
    encoder = make_encoder()
    fast = jaxattn.compile(encoder)
    assert inspect.signature(fast) == inspect.signature(encoder.__call__)
    assert repr(fast) == "<jaxattn.compile(TransformerEncoder): 0 compilations>"
    fast(draw(B, T, D))
    assert repr(fast) == "<jaxattn.compile(TransformerEncoder): 1 compilation>"
    assert "pad_to=(8, 16)" in repr(jaxattn.compile(encoder, pad_to=[8, 16]))


def test_one_trace_for_each_shape():
    module = Counted()
    fast = jaxattn.compile(module)
    for _ in range(3):
        fast(draw(T, D))
    assert module.runs.count == fast.compilations == 1
    fast(draw(B, D))
    assert module.runs.count == fast.compilations == 2


def test_weights_are_arguments_of_the_jit():
    encoder = make_encoder()
    lowered = jaxattn.compile(encoder).lower(draw(B, T, D))
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(lowered.args_info))
    assert shapes == sorted([*(leaf.shape for leaf in jax.tree.leaves(nnx.state(encoder))), (B, T, D)])
    assert max((line.count("dense<") for line in lowered.as_text().splitlines()), default=0) <= 1
    assert not any('dense<"0x' in line for line in lowered.as_text().splitlines())


def test_loaded_weights_are_seen_without_a_trace():
    encoder, x = make_encoder(), draw(B, T, D)
    fast = jaxattn.compile(encoder)
    before = fast(x)
    jaxattn.load_state_dict(encoder, {name: array * 2 for name, array in jaxattn.state_dict(encoder).items()})
    assert_same(fast(x), encoder(x))
    assert np.abs(np.asarray(fast(x)) - before).max() > 0.01
    assert fast.compilations == 1


def test_optimizer_steps_are_seen_without_a_trace():
    module, x = Counted(), draw(T, D)
    fast = jaxattn.compile(module)
    optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(3):
        before = fast(x)
        optimizer.update(module, nnx.grad(lambda module: (module(x) ** 2).sum())(module))
        assert_same(fast(x), module(x))
        assert np.abs(np.asarray(fast(x)) - before).max() > 0.01
    assert fast.compilations == 1


def replace_variable(module):
    module.inner.bias = nnx.Param(module.inner.bias[...] + 1)


def replace_module(module):
    module.inner = make(lambda: nnx.LayerNorm(D, rngs=nnx.Rngs(0)))


def set_number(module):
    module.rate = 2.0


def append_to_a_list(module):
    module.sizes.append(3)


CHANGES = [replace_variable, replace_module, set_number, append_to_a_list]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_set_on_the_module_is_seen(change):
    module, x = Counted(), draw(T, D)
    fast = jaxattn.compile(module)
    before = fast(x)
    change(module)
    assert_same(fast(x), module(x))
    assert np.abs(np.asarray(fast(x)) - before).max() > 0.01
    module.inner.bias[...] = module.inner.bias[...] + 1
    assert_same(fast(x), module(x))


def test_equal_attributes_of_another_type_are_told_apart():
    module, x = Counted(lambda x: x // 2), jnp.arange(6)
    module.sizes = (1,)  # A list can't be hashed, so every change would compile anew.
    fast = jaxattn.compile(module)
    for rate in (1.0, 1, 1.0, True):
        module.rate = rate
        assert_same(fast(x), module(x))


def test_what_only_flax_changes_is_no_change():
    module, x = make_encoder(), draw(B, T, D)
    optimizer = nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)
    fast, watch = jaxattn.compile(module), Watch(module)

    @nnx.jit
    def step(module, optimizer, x):
        optimizer.update(module, nnx.grad(lambda module: (module(x) ** 2).sum())(module))

    for _ in range(2):
        step(module, optimizer, x)
        nnx.grad(lambda module: (module(x) ** 2).sum())(module)
        nnx.update(module, nnx.state(module))
        assert not watch.changed()
        assert_same(fast(x), module(x))
    assert fast.compilations == 1


@pytest.mark.parametrize("container", ["nnx.List", "list", "nested"])
def test_layers_replaced_in_a_container_are_seen(container):
    class Layers(nnx.Module):
        def __init__(self):
            layers = [make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0))) for _ in range(2)]
            held = {"nnx.List": nnx.List, "list": list, "nested": lambda layers: {"a": (1, layers)}}[container](layers)
            self.layers = nnx.data(held)

        def __call__(self, x):
            for layer in self.layers["a"][1] if container == "nested" else self.layers:
                x = layer(x)
            return x

    module, x = Layers(), draw(T, D)
    fast = jaxattn.compile(module)
    fast(x)
    layers = module.layers["a"][1] if container == "nested" else module.layers
    layers[1] = nnx.Linear(D, D, rngs=nnx.Rngs(7))
    assert_same(fast(x), module(x))
    layers.append(nnx.Linear(D, D, rngs=nnx.Rngs(8)))
    assert_same(fast(x), module(x))
    layers.pop()
    assert_same(fast(x), module(x))


def test_evaluation_and_training_are_told_apart_and_compiled_once_each():
    module, x = nnx.Sequential(nnx.Linear(D, D, rngs=nnx.Rngs(0)), nnx.BatchNorm(D, rngs=nnx.Rngs(0))), draw(T, D)
    module.eval()
    fast = jaxattn.compile(module)
    for _ in range(2):
        assert_same(fast(x), module(x))
        module.train()
        state = jax.tree.map(np.asarray, nnx.state(module))
        with pytest.raises(NotImplementedError, match=r"BatchNorm|Sequential.*wrote `layers\.1\.mean`"):
            fast(x)
        jax.tree.map(np.testing.assert_array_equal, nnx.state(module), state)
        module.eval()
    assert fast.compilations == 1


def test_refresh_is_for_what_cannot_be_seen():
    class Config:
        factor = 1.0

    class Configured(nnx.Module):
        def __init__(self):
            self.config = nnx.static(Config())

        def __call__(self, x):
            return x * self.config.factor

    module, x = Configured(), draw(T)
    fast = jaxattn.compile(module)
    fast(x)
    module.config.factor = 2.0
    fast.refresh()
    assert_same(fast(x), 2 * x)


def test_arrays_that_are_no_variables_are_arguments_too():
    class Table(nnx.Module):
        def __init__(self):
            self.table, self.host = nnx.data(draw(D)), nnx.data(np.ones(D, np.float32))

        def __call__(self, x):
            return x * self.table + self.host

    module, x = Table(), draw(T, D)
    fast = jaxattn.compile(module)
    assert_same(fast(x), module(x))
    module.table = module.table + 1
    module.host[:] = 5
    assert_same(fast(x), module(x))
    assert fast.compilations == 1


def test_a_variable_under_two_paths_is_one_argument():
    class Tied(nnx.Module):
        def __init__(self):
            self.first = make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0)))
            self.second = make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0)))
            self.second.kernel, self.third = self.first.kernel, self.first

        def __call__(self, x):
            assert self.first.kernel is self.second.kernel and self.third is self.first
            return self.third(self.second(self.first(x)))

    module, x = Tied(), draw(T, D)
    fast = jaxattn.compile(module)
    assert len(jax.tree.leaves(fast.lower(x).args_info)) == 3 + 1
    module.first.kernel[...] = module.first.kernel[...] / 3
    assert_same(fast(x), module(x))


def test_select_drops_the_rest_inside_the_jit():
    attention, x = make_attention(), draw(B, T, D)
    fast = jaxattn.compile(attention, select=lambda result: result.output)
    assert_same(fast(x), attention(x).output)
    assert fast.lower(x).out_info[0].shape == (B, T, D)


def test_flags_none_and_numbers_are_static_and_told_apart():
    module, x = Counted(), draw(T, D)
    fast = jaxattn.compile(module)
    calls = [{}, {"flag": True}, {"scale": 1}, {"scale": 1.0}, {"scale": True}, {"scale": None, "flag": False}]
    calls += [{"options": {"mode": "a", "none": None, "deep": [True, (1.5, None)]}}, {"options": {"mode": "b"}}]
    for _ in range(2):
        for call in calls:
            assert_same(fast(x, **call), module(x, **call))
    assert fast.compilations == len(calls)
    integers = jnp.arange(6).reshape(2, 3)
    identity = Counted(lambda x: x // 2)
    identity.rate = 1
    fast = jaxattn.compile(identity)
    for scale in (1, 1.0, True, 0.0, -0.0):
        result, expected = fast(integers, scale=scale), identity(integers, scale=scale)
        assert_same(result, expected)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_numbers_as_arrays_are_traced():
    module, x = Counted(), draw(T, D)
    fast = jaxattn.compile(module)
    for scale in (np.float32(1), np.float32(2), jnp.float32(3)):
        assert_same(fast(x, scale=scale), module(x, scale=scale))
    assert fast.compilations == 1


def test_one_array_given_twice_stays_one():
    class Same(nnx.Module):
        def __call__(self, a, b, c):
            return a * 0 + (1 if a is b else 2) + (10 if b is c else 20)

    fast = jaxattn.compile(Same())
    for make_one in (draw, lambda n: np.ones(n, np.float32)):
        a, b = make_one(T), make_one(T) + 1
        assert [float(fast(*given)[0]) for given in ((a, a, a), (a, b, b), (a, a, b))] == [11, 12, 21]


def test_gradients_and_vmap_with_respect_to_inputs():
    encoder, x = make_encoder(), draw(B, T, D)
    fast = jaxattn.compile(encoder)
    expected = jax.grad(lambda x: (encoder(x) ** 2).sum())(x)
    assert_same(jax.grad(lambda x: (fast(x) ** 2).sum())(x), expected, 1e-3)
    assert_same(jax.jit(jax.grad(lambda x: (fast(x) ** 2).sum()))(x), expected, 1e-3)
    assert_same(jax.vmap(fast)(x), encoder(x))
