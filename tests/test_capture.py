"""jaxattn.capture: everything that a module computed, by path."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxattn.capture import capture, capture_events
from jaxattn.variants.multi_head import MultiHeadCrossAttention
from jaxattn.variants.multihead_torch import MultiheadAttention
from jaxattn.variants.my_attn import MyAttn

from .capturing import ROUNDING, B, D, H, N, Stack, T, draw, in_float64, make, make_attention, make_encoder, make_linear


@pytest.fixture(scope="module")
def encoder() -> Any:
    return make_encoder()


@pytest.fixture(scope="module")
def attention() -> Any:
    return make_attention()


def test_maps_of_a_stack_are_what_its_layers_compute(encoder):
    x = draw(B, T, D)
    result, seen = capture(encoder, x)
    for i, inputs in enumerate((x, seen["layers.0:output"])):
        attention = encoder.layers[i].self_attn
        kernel, bias = in_float64(attention.out_proj.kernel[...], attention.out_proj.bias[...])
        packed, packed_bias, inputs = in_float64(attention.in_proj_weight[...], attention.in_proj_bias[...], inputs)
        q, k, v = (part.reshape(B, T, N, H) for part in np.split(inputs @ packed.T + packed_bias, 3, -1))
        logits = np.einsum("btnh,bsnh->bnts", q, k) / H**0.5
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        output = np.einsum("bnts,bsnh->btnh", weights, v).reshape(B, T, D) @ kernel + bias
        expected = {"q": q, "k": k, "v": v, "logits": logits, "weights": weights, "output": output}
        for name, value in expected.items():
            np.testing.assert_allclose(seen[f"layers.{i}.self_attn:{name}"], value, atol=ROUNDING, err_msg=name)
    outputs = [seen["layers.0:output"], seen["layers.1:output"], seen[":output"]]
    expected = [encoder.layers[0](x), result, result]
    for output, value in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, value)


def test_every_called_module_is_there_once_and_nothing_else(encoder):
    _, seen = capture(encoder, draw(B, T, D))
    parts = "self_attn self_attn.out_proj linear1 linear2 norm1 norm2 dropout dropout1 dropout2".split()
    outputs = [f"layers.{i}.{part}:output" for i in range(2) for part in parts]
    records = [f"layers.{i}.self_attn:{name}" for i in range(2) for name in ("q", "k", "v", "logits", "weights")]
    assert sorted(seen) == sorted([*outputs, *records, "layers.0:output", "layers.1:output", ":output"])


def test_events_come_as_they_finish_with_kinds_and_shapes():
    module = nnx.eval_shape(lambda: MultiHeadCrossAttention(D, N, 9, rngs=nnx.Rngs(0)))
    events = []
    nnx.eval_shape(lambda m, x, c: events.extend(capture_events(m, x, c)[1]), module, draw(B, T, D), draw(B, 4, 9))
    shapes = [(event.key, event.kind, event.inputs, event.shape) for event in events]
    assert shapes == [
        ("Wq:output", "Linear", ((B, T, D),), (B, T, D)),
        ("Wk:output", "Linear", ((B, 4, 9),), (B, 4, D)),
        ("Wv:output", "Linear", ((B, 4, 9),), (B, 4, D)),
        (":q", "operation", (), (B, T, N, H)),
        (":k", "operation", (), (B, 4, N, H)),
        (":v", "operation", (), (B, 4, N, H)),
        (":logits", "operation", ((B, T, N, H), (B, 4, N, H)), (B, N, T, 4)),
        (":weights", "operation", ((B, N, T, 4),), (B, N, T, 4)),
        ("W_o:output", "Linear", ((B, T, D),), (B, T, D)),
        (":output", "MultiHeadCrossAttention", ((B, T, D), (B, 4, 9)), (B, T, D)),
    ]


def test_inside_jit_the_values_are_outputs_of_it(encoder):
    x = draw(B, T, D)
    result, seen = capture(encoder, x)
    jitted_result, jitted = jax.jit(capture)(encoder, x)
    np.testing.assert_allclose(jitted_result, result, atol=ROUNDING)
    assert jitted.keys() == seen.keys()
    for key, value in seen.items():
        np.testing.assert_allclose(jitted[key], value, atol=ROUNDING, err_msg=key)


def test_capture_inside_grad_and_vmap_of_the_caller(attention):
    def captured(x):
        return (capture(attention, x)[1][":weights"] ** 2).sum()

    def returned(x):
        return (attention(x)[1] ** 2).sum()

    @jax.jit
    def all_of_them(x):
        weights = jax.vmap(lambda x: capture(attention, x)[1][":weights"])(x)
        return jax.grad(captured)(x), jax.grad(returned)(x), weights, attention(x)[1]

    gradient, expected_gradient, weights, expected_weights = all_of_them(draw(B, T, D))
    np.testing.assert_allclose(gradient, expected_gradient, atol=ROUNDING)
    assert np.abs(gradient).max() > 1e-3
    np.testing.assert_allclose(weights, expected_weights, atol=ROUNDING)


@pytest.mark.parametrize("batch", [(), (2, B)])
def test_unbatched_and_any_batch_axes(attention, batch):
    (output, weights), seen = jax.jit(capture)(attention, draw(*batch, T, D))
    assert seen[":q"].shape == (*batch, T, N, H)
    assert seen[":logits"].shape == weights.shape == (*batch, N, T, T)
    np.testing.assert_array_equal(seen[":weights"], weights)
    np.testing.assert_array_equal(seen[":output"], output)


def test_my_attn_records_its_own_logits_and_weights():
    module = make(lambda: MyAttn(4, 6, 7, 5, 3, rngs=nnx.Rngs(0)))
    (_, weights), seen = jax.jit(capture)(module, draw(B, 1, 4), draw(B, 1, 6), draw(B, 7, 5))
    assert sorted(seen) == [":logits", ":output", ":weights", "attn:output", "attn_combine:output"]
    np.testing.assert_array_equal(seen[":logits"], seen["attn:output"])
    np.testing.assert_array_equal(seen[":weights"][..., 0, :], weights)


def test_weights_are_those_before_dropout_one_map_a_head_whatever_the_module_returns():
    module, x = make(lambda: MultiheadAttention(D, N, 0.5, batch_first=True, rngs=nnx.Rngs(0))), draw(B, T, D)
    options = {"deterministic": False, "dropout_mask": jnp.tri(T, dtype=bool)}
    (_, returned), seen = capture(module, x, x, x, **options)
    assert returned.shape == (B, T, T)
    assert np.any(returned == 0)
    assert seen[":weights"].shape == (B, N, T, T)
    np.testing.assert_allclose(np.asarray(seen[":weights"]).sum(-1), 1.0, atol=ROUNDING)


def test_a_module_called_twice_gives_a_tuple_in_call_order(attention):
    module, x = Stack(lambda inner, x: inner(inner(x))), draw(B, T, D)
    result, seen = capture(module, x)
    first, second = seen["inner:output"]
    np.testing.assert_array_equal(first, module.inner(module.first(x)))
    np.testing.assert_array_equal(second, module.inner(first))
    np.testing.assert_array_equal(second, result)
    _, seen = capture(Stack(lambda inner, x: inner(inner(x).output).output, attention), x)
    assert [len(seen[f"inner:{name}"]) for name in ("q", "logits", "weights", "output")] == [2, 2, 2, 2]
    np.testing.assert_array_equal(seen["inner:weights"][0], attention(module.first(x))[1])


def test_a_module_under_two_paths_has_the_first():
    class Shared(nnx.Module):
        def __init__(self):
            self.a = make_linear()
            self.b = self.a

        def __call__(self, x):
            return self.a(self.b(x))

    _, seen = capture(Shared(), draw(T, D))
    assert list(seen) == ["a:output", ":output"]
    assert len(seen["a:output"]) == 2


def test_fields_of_a_named_tuple_are_entries_of_their_own():
    class Result(NamedTuple):
        last_hidden_state: jax.Array
        pooler_output: jax.Array | None

    module = Stack(lambda inner, x: Result(inner(x), None))
    result, seen = capture(module, draw(T, D))
    assert list(seen) == ["first:output", "inner:output", ":last_hidden_state", ":output"]
    np.testing.assert_array_equal(seen[":last_hidden_state"], seen["inner:output"])
    assert seen[":output"] is result


def test_a_subclass_that_calls_its_base_is_one_call():
    class Doubled(nnx.Linear):
        def __call__(self, inputs):
            return 2 * super().__call__(inputs)

    class Inheriting(nnx.Linear):
        pass

    x = draw(T, D)
    for kind, factor in ((Doubled, 2), (Inheriting, 1)):
        # A plain Linear beside it, so that the base class is watched as well.
        base, inner = make_linear(), make(lambda kind=kind: kind(D, D, rngs=nnx.Rngs(0)))
        module = Stack(lambda pair, x: pair.layers[1](pair.layers[0](x)), nnx.Sequential(base, inner))
        _, seen = capture(module, x)
        kernel, bias, inputs = in_float64(inner.kernel[...], inner.bias[...], seen["inner.layers.0:output"])
        np.testing.assert_allclose(seen["inner.layers.1:output"], factor * (inputs @ kernel + bias), atol=ROUNDING)
        assert "__call__" not in Inheriting.__dict__
