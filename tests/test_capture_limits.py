"""jaxattn.capture: complete or an error, and without a trace."""

import threading

import jax
import numpy as np
import pytest
from flax import nnx

from jaxattn.capture import capture
from jaxattn.core.dot_product import AttentionOutput, dot_product_attention

from .capturing import ROUNDING, B, D, N, Stack, T, draw, make_attention, make_encoder, make_linear

NESTED = {
    "jit": lambda inner, x: jax.jit(lambda x: inner(x))(x),
    "jit of the module": lambda inner, x: jax.jit(lambda inner, x: inner(x))(inner, x),
    "nnx.jit": lambda inner, x: nnx.jit(lambda inner, x: inner(x))(inner, x),
    "nnx.remat": lambda inner, x: nnx.remat(lambda inner, x: inner(x))(inner, x),
    "checkpoint": lambda inner, x: jax.checkpoint(lambda x: inner(x))(x),
    "scan": lambda inner, x: jax.lax.scan(lambda x, _: (inner(x), None), x, length=2)[0],
    "vmap": lambda inner, x: jax.vmap(inner)(x),
    "nnx.vmap": lambda inner, x: nnx.vmap(lambda inner, x: inner(x), in_axes=(None, 0))(inner, x),
    "grad": lambda inner, x: jax.grad(lambda x: inner(x).sum())(x),
    "cond": lambda inner, x: jax.lax.cond(x[0, 0] > 0, inner, lambda x: x, x),
    "a copy": lambda inner, x: nnx.clone(inner)(x),
}


@pytest.mark.parametrize("outside", ["eager", "jitted"])
@pytest.mark.parametrize("how", NESTED)
def test_a_transformation_inside_raises_with_the_path(how, outside):
    module, x = Stack(NESTED[how]), draw(T, D)
    module(x)
    function = capture if outside == "eager" else jax.jit(capture)
    with pytest.raises(NotImplementedError, match="`inner`"):
        function(module, x)
    assert len(capture(module.inner, x)[1]) == 1


def test_code_that_was_compiled_before_is_no_hiding_place():
    inner = make_linear()
    compiled = jax.jit(lambda x: inner(x))
    module, x = Stack(lambda inner, x: compiled(x), inner), draw(T, D)
    module(x)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="`inner`"):
            capture(module, x)


@pytest.mark.parametrize("transformed", [jax.jit, jax.vmap, jax.checkpoint], ids=["jit", "vmap", "checkpoint"])
def test_an_operation_transformed_inside_raises_with_the_path(transformed):
    module = Stack(lambda inner, x: transformed(lambda x: dot_product_attention(x, x, x).output)(inner(x)))
    with pytest.raises(NotImplementedError, match="the captured module itself computed its q"):
        capture(module, draw(B, T, N, D))


def test_a_module_that_handles_the_error_does_not_hide_it():
    def how(inner, x):
        try:
            return jax.jit(lambda x: inner(x))(x)
        except NotImplementedError:
            return x

    with pytest.raises(NotImplementedError, match="`inner`"):
        capture(Stack(how), draw(T, D))


def test_capture_within_capture_raises():
    with pytest.raises(NotImplementedError, match="inside another `capture`"):
        capture(Stack(lambda inner, x: capture(inner, x)[0]), draw(T, D))


@pytest.mark.parametrize("module", [lambda x: x, nnx.List([]), nnx.Linear], ids=["function", "no call", "class"])
def test_something_else_than_a_module_is_a_type_error(module):
    with pytest.raises(TypeError, match=r"nnx\.Module|nnx\.module\.Module"):  # the hook's words, or ours without it
        capture(module, draw(T, D))


def calls_of(module: nnx.Module) -> dict:
    kinds = {type(part) for _, part in nnx.iter_modules(module)}
    return {kind: kind.__dict__.get("__call__") for kind in kinds}


def test_an_exception_passes_through_and_restores_the_classes():
    encoder = make_encoder()

    def how(inner, x):
        raise KeyError("theirs")

    module = Stack(how, encoder)
    before = calls_of(module)
    with pytest.raises(KeyError, match="theirs"):
        capture(module, draw(B, T, D))
    assert calls_of(module) == before
    with pytest.raises(ValueError, match="embed_dim"):
        capture(encoder, np.ones((B, T, D + 1), np.float32))
    assert calls_of(module) == before
    assert len(capture(module.inner, draw(B, T, D))[1]) == 31


def test_the_module_and_its_output_are_as_without_capture():
    encoder, attention, x = make_encoder(), make_attention(), draw(B, T, D)
    graph, state = nnx.split(encoder)
    before = calls_of(encoder)
    expected = encoder(x)
    result, _ = capture(encoder, x)
    np.testing.assert_array_equal(result, expected)
    graph_after, state_after = nnx.split(encoder)
    assert graph_after == graph
    jax.tree.map(np.testing.assert_array_equal, state_after, state)
    assert calls_of(encoder) == before
    assert isinstance(capture(attention, x)[0], AttentionOutput)


def test_other_threads_calling_the_class_are_neither_seen_nor_disturbed():
    inner, other, x = make_linear(), make_linear(), draw(T, D)
    elsewhere = {}

    def work():
        elsewhere["same module"] = inner(x)
        elsewhere["other module"] = jax.jit(lambda x: other(x))(x)
        elsewhere["own capture"] = capture(other, x)[1]

    def how(inner, x):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return inner(x)

    _, seen = capture(Stack(how, inner), x)
    assert list(seen) == ["first:output", "inner:output", ":output"]
    assert seen["inner:output"].shape == (T, D)
    np.testing.assert_array_equal(elsewhere["same module"], inner(x))
    np.testing.assert_allclose(elsewhere["other module"], other(x), atol=ROUNDING)
    np.testing.assert_array_equal(elsewhere["own capture"][":output"], other(x))
    assert nnx.Linear.__call__.__module__.startswith("flax") and not hasattr(nnx.Linear.__call__, "__wrapped__")
