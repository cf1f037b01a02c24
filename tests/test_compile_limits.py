"""jaxattn.compile: randomness advances, written state is refused, and what it can't take is told."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn

from .capturing import B, D, T, draw, make, make_encoder
from .compiling import Counted, assert_same


class Dropped(nnx.Module):
    def __call__(self, x, *, rngs: Any = None, deterministic=False, more=()):
        for stream in (rngs, rngs, *more):
            x = x if deterministic else x * jax.random.bernoulli(stream.dropout(), 0.5, x.shape)
        return x


def test_rngs_advance_as_in_the_eager_call():
    module, x = Dropped(), jnp.ones(64)
    fast = jaxattn.compile(module)
    eager, compiled = nnx.Rngs(0, dropout=1), nnx.Rngs(0, dropout=1)
    results = []
    for _ in range(3):
        results.append(np.asarray(fast(x, rngs=compiled)))
        assert_same(results[-1], module(x, rngs=eager))
    assert fast.compilations == 1 and not np.array_equal(results[0], results[1])
    for rngs, call in ((eager, module), (compiled, fast)):
        call(x, rngs=rngs, deterministic=True)
        call(x, rngs=rngs, more=(rngs, rngs))
        assert (rngs["dropout"].count[...], rngs["default"].count[...]) == (10, 0)
    other = nnx.Rngs(dropout=2)
    assert not np.array_equal(fast(x, rngs=other), results[0])
    np.testing.assert_array_equal(fast(x, rngs=nnx.Rngs(0, dropout=1)), results[0])


def test_dropout_of_the_encoder_is_the_eager_one():
    encoder, x = make_encoder(), draw(B, T, D)
    fast, eager, compiled = jaxattn.compile(encoder), nnx.Rngs(dropout=1), nnx.Rngs(dropout=1)
    for _ in range(2):
        assert_same(fast(x, deterministic=False, rngs=compiled), encoder(x, deterministic=False, rngs=eager))
    assert fast.compilations == 1


class Writes(nnx.Module):
    def __init__(self, how: Any):
        self.calls: float = 0
        self.how, self.state = how, nnx.Variable(jnp.zeros(()))
        self.rngs, self.table = nnx.Rngs(0), nnx.Variable({"a": jnp.zeros(2)})

    def __call__(self, x):
        self.how(self, x)
        return x


WRITES = {
    "state": lambda self, x: self.state.set_value(x.sum()),
    "calls": lambda self, x: setattr(self, "calls", self.calls + 1),
    "rngs.default.count": lambda self, x: self.rngs(),
    "table": lambda self, x: self.table.set_value({"a": x[:2]}),
    "last": lambda self, x: setattr(self, "last", nnx.data(x)),
    "kept": lambda self, x: self.sow(nnx.Intermediate, "kept", x),
}


@pytest.mark.parametrize("path", WRITES)
def test_a_module_that_writes_is_refused_and_untouched(path):
    module = Writes(WRITES[path])
    graphdef, state = nnx.split(module)
    fast = jaxattn.compile(module)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=rf"must not write its state.*Writes that wrote `{path}"):
            fast(draw(T))
    after, state_after = nnx.split(module)
    assert after == graphdef and module.calls == 0 and fast.compilations == 0
    assert jax.tree.structure(state) == jax.tree.structure(state_after)
    assert all(a is b for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(state_after), strict=True))


def test_writing_the_same_again_is_no_write():
    def how(self, x):
        self.state.set_value(self.state.get_value())
        self.calls = float(str(self.calls))

    module = Writes(how)
    module.calls = 0.5
    assert_same(jaxattn.compile(module)(draw(T)), draw(T))


def test_inside_capture_it_raises_as_every_nested_jit():
    encoder, x = make_encoder(), draw(B, T, D)

    class Outer(nnx.Module):
        def __init__(self, fast):
            self.encoder, self.fast = encoder, nnx.static(fast)

        def __call__(self, x):
            return self.fast(x)

    outer = Outer(jaxattn.compile(encoder))
    for _ in range(2):
        outer(x)
        with pytest.raises(NotImplementedError, match="`capture` can't keep everything.*encoder"):
            jaxattn.capture(outer, x)
    with pytest.raises(TypeError, match=r"nnx\.Module|nnx\.module\.Module"):
        jaxattn.capture(outer.fast, x)  # pyright: ignore[reportArgumentType] -- wrong on purpose


def test_compiler_options_reach_xla():
    module, x = Counted(), draw(T, D)
    assert_same(jaxattn.compile(module, compiler_options={"xla_cpu_enable_fast_math": False})(x), module(x))
    with pytest.raises(Exception, match="no_such_option"):
        jaxattn.compile(module, compiler_options={"no_such_option": True})(x)


@pytest.mark.parametrize("module", [lambda x: x, nnx.List([]), nnx.Linear], ids=["function", "no call", "class"])
def test_something_else_than_a_module_is_a_type_error(module):
    with pytest.raises(TypeError, match=r"nnx\.Module|nnx\.module\.Module"):
        jaxattn.compile(module)


def test_wrong_arguments_are_told():
    with pytest.raises(TypeError, match="select"):
        jaxattn.compile(Counted(), select="output")  # pyright: ignore[reportArgumentType] -- wrong on purpose
    fast, x = jaxattn.compile(Counted()), draw(T, D)
    with pytest.raises(TypeError, match="must be arrays, nnx.Rngs or hashable, got a Param"):
        fast(x, nnx.Param(x))
    with pytest.raises(TypeError, match="got a Linear"):
        fast(x, make(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    with pytest.raises(TypeError, match="hashable, got a set"):
        fast(x, options={1, 2})
    reference = Counted()
    reference.inner.bias = nnx.Param(jnp.zeros(D), ref=True)
    with pytest.raises(NotImplementedError, match="must hold arrays, got a Param with a Ref"):
        jaxattn.compile(reference)
