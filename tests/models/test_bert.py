"""Bert against transformers' BertModel: values, gradients, training."""

import copy
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx

import jaxattn
from jaxattn.core.activations import ACTIVATIONS
from jaxattn.parity import criterion

from ..inputs import generator
from .hugging_face import (
    SMALL,
    assert_rounding,
    assert_same_algorithm,
    converted,
    draw,
    hugging_face,
    ours,
    theirs,
)


def masks_for(shape):
    """Left padding, holes, one sentence without any token."""
    left = (np.arange(shape[1]) >= np.arange(shape[0])[:, None]).astype(np.int64)
    holes = generator("holes").integers(0, 2, shape)
    empty = np.ones(shape, np.int64)
    empty[1] = 0
    return {"left": left, "holes": holes, "empty": empty}


def strange(inputs):
    """Ids that no tokenizer gives: only padding, only the last token, the ends of every table."""
    shape = inputs["input_ids"].shape
    sizes = {
        "input_ids": "vocab_size",
        "token_type_ids": "type_vocab_size",
        "position_ids": "max_position_embeddings",
    }
    return {
        "padding": {**inputs, "input_ids": np.full(shape, SMALL["pad_token_id"])},
        "last": {**inputs, **{name: np.full(shape, SMALL[size] - 1) for name, size in sizes.items()}},
        "first": {**inputs, **{name: np.zeros(shape, np.int64) for name in sizes}},
    }


def samples(seed: int):
    inputs = draw(f"bert {seed}")
    yield "ragged", inputs
    for name, mask in masks_for(inputs["input_ids"].shape).items():
        yield name, {**inputs, "attention_mask": mask}
    yield from strange(inputs).items()


@pytest.mark.parametrize("seed", range(3))
def test_outputs_hidden_states_and_maps(seed):
    """Float64 proves the algorithm, float32 the rounding; truth is transformers' float64 run on float32 weights."""
    single = hugging_face(f"bert {seed}").float()
    double = copy.deepcopy(single).double()
    model = converted(single)
    with jax.enable_x64(True):
        exact = converted(double)
    for name, inputs in samples(seed):
        truth = theirs(double, inputs)
        with jax.enable_x64(True):
            assert_same_algorithm(ours(exact, inputs), truth)
        assert_rounding(ours(model, inputs), theirs(single, inputs), truth, np.float32)
        if name == "empty":
            assert np.all(truth["encoder.layers.1.self_attn:weights"][1] == 1 / 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    half = hugging_face("half", num_hidden_layers=1).to(dtype)
    inputs = draw("half")
    inputs["attention_mask"][1] = 0
    model = converted(half)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == torch.bfloat16 else np.float16
    truth = theirs(copy.deepcopy(half).double(), inputs)
    assert_rounding(ours(model, inputs), theirs(half, inputs), truth, numpy_dtype)


def test_computation_dtype():
    """dtype= computes the bfloat16 weights in float32: nearer to the truth than bfloat16 can be."""
    half = hugging_face("half", num_hidden_layers=1).bfloat16()
    inputs = draw("half")
    truth = theirs(copy.deepcopy(half).double(), inputs)
    found = ours(converted(half, dtype=jnp.float32), inputs)
    assert_rounding(found, theirs(copy.deepcopy(half).float(), inputs), truth, np.float32)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation(activation):
    double = hugging_face(activation, hidden_act=activation, num_hidden_layers=1)
    inputs = draw(activation)
    with jax.enable_x64(True):
        hidden = np.asarray(converted(double)(**inputs).last_hidden_state)
    truth = theirs(double, inputs)["last_hidden_state"]
    assert np.max(np.abs(hidden - truth)) <= criterion.OUTPUT_TOLERANCE * criterion.output_scale(truth)


def test_layer_norm_eps_counts():
    """Nearly constant rows: there a wrong eps shows."""
    double = hugging_face("eps", layer_norm_eps=1e-3, num_hidden_layers=1)
    with torch.no_grad():
        for table in (double.embeddings.word_embeddings, double.embeddings.position_embeddings):
            table.weight *= 1e-3
        double.embeddings.token_type_embeddings.weight *= 1e-3
    inputs = draw("eps")
    with jax.enable_x64(True):
        assert_same_algorithm(ours(converted(double), inputs), theirs(double, inputs))


def parity_of_gradients(double, result, grads, cotangents):
    """Gradients of Σ output · cotangent for every parameter, under Hugging Face's names."""
    terms = [(getattr(result, name) * torch.from_numpy(array)).sum() for name, array in cotangents.items()]
    torch.stack(terms).sum().backward()
    expected = {name: parameter.grad.numpy() for name, parameter in double.named_parameters()}
    assert grads.keys() == expected.keys()
    scale = criterion.gradient_scale(expected.values())
    for name, truth in expected.items():
        tolerance = criterion.GRADIENT_TOLERANCE
        verdict = criterion.algorithm_verdict(grads[name], truth, scale=scale, tolerance=tolerance)
        assert verdict.problem is None, f"{name}: {verdict.problem}"
    return expected


def cotangents_for(inputs):
    rng, (batch, length) = generator("cotangents"), inputs["input_ids"].shape
    width = SMALL["hidden_size"]
    return {
        "last_hidden_state": rng.normal(size=(batch, length, width)),
        "pooler_output": rng.normal(size=(batch, width)),
    }


def loss(model, inputs, cotangents, **flags):
    result = model(**inputs, **flags)
    return sum((getattr(result, name) * array).sum() for name, array in cotangents.items())


def test_gradients_of_every_parameter():
    """With a sentence without any token, and with padding tokens that are not masked: their row gets no gradient."""
    double = hugging_face("gradients")
    inputs = draw("gradients")
    inputs["attention_mask"][1] = 0
    inputs["input_ids"][0, :2] = SMALL["pad_token_id"]
    cotangents = cotangents_for(inputs)
    with jax.enable_x64(True):
        model = converted(double)
        grads = jaxattn.state_dict(jax.jit(jax.grad(loss))(model, inputs, cotangents))
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    expected = parity_of_gradients(double, double(**tensors), grads, cotangents)
    row = SMALL["pad_token_id"]
    words = "embeddings.word_embeddings.weight"
    assert not expected[words][row].any() and not grads[words][row].any()


def test_training_mode():
    """The same dropout masks on both sides: where dropout is applied, at which rate, and its gradient."""
    double = hugging_face("training", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2).train()
    inputs = draw("training")
    cotangents = cotangents_for(inputs)
    drawn = {"ours": [], "theirs": []}

    def keep(side, rate, shape):
        drawn[side].append((rate, tuple(shape)))
        return generator(f"dropout {len(drawn[side])}").random(shape) >= rate

    def torch_dropout(values, p=0.5, training=True, inplace=False):
        return values * torch.from_numpy(keep("theirs", p, values.shape)) / (1 - p)

    def draw_keep_mask(rng, rate, shape):
        return jnp.asarray(keep("ours", rate, shape))

    def attention(q, k, v, *, dropout_rng, dropout_mask, dropout_rate, **options):
        assert dropout_rng is not None and dropout_mask is None
        keep_mask = draw_keep_mask(dropout_rng, dropout_rate, (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3]))
        return jaxattn.dot_product_attention(q, k, v, dropout_mask=keep_mask, dropout_rate=dropout_rate, **options)

    with mock.patch("torch.nn.functional.dropout", torch_dropout):
        result = double(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    with (
        jax.enable_x64(True),
        mock.patch("jaxattn.core.dropout.draw_keep_mask", draw_keep_mask),
        mock.patch("jaxattn.variants.multihead_torch.dot_product_attention", attention),
    ):
        model = converted(double)
        flags = {"deterministic": False, "rngs": jax.random.key(0)}
        step = jax.jit(lambda *arguments: jax.grad(loss)(*arguments, **flags))
        grads = jaxattn.state_dict(step(model, inputs, cotangents))
    assert drawn["ours"] == drawn["theirs"] and len(drawn["ours"]) == 1 + 3 * SMALL["num_hidden_layers"]
    parity_of_gradients(double, result, grads, cotangents)


def test_dropout_needs_randomness():
    """A stream of nnx.Rngs or a key of JAX's; every sublayer draws its own."""
    model, ids = converted(hugging_face("dropout", num_hidden_layers=1).float()), np.arange(4)
    with pytest.raises(ValueError, match="rngs"):
        jax.eval_shape(lambda: model(ids, deterministic=False))
    by_key = jax.jit(lambda key: model(ids, deterministic=False, rngs=key).last_hidden_state)
    by_stream = jax.jit(lambda key: model(ids, deterministic=False, rngs=nnx.Rngs(dropout=key)).last_hidden_state)
    first, other = jax.random.key(0), jax.random.key(1)
    assert jnp.array_equal(by_key(first), by_stream(first)) and not jnp.array_equal(by_key(first), by_key(other))
