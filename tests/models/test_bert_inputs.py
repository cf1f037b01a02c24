"""How Bert may be called: batch axes, mask ranks, defaults, jit; and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxattn
from jaxattn.models import Bert, BertConfig
from jaxattn.parity import criterion

from ..tolerances import close
from .hugging_face import SMALL, converted, draw, hugging_face, run, theirs

ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}


@pytest.fixture(scope="module")
def model():
    return converted(hugging_face("inputs", **ONE_LAYER).float())


def same(found, expected):
    return all(close(one, other) for one, other in zip(found, expected, strict=True))


def test_defaults_are_hugging_faces(model):
    inputs = draw("inputs")
    shape = inputs["input_ids"].shape
    default = model(inputs["input_ids"])
    explicit = model(inputs["input_ids"], np.ones(shape, bool), np.zeros(shape, np.int8), np.arange(shape[1]))
    assert all(np.array_equal(one, other) for one, other in zip(default, explicit, strict=True))
    truth = theirs(hugging_face("inputs", **ONE_LAYER), {"input_ids": inputs["input_ids"]})
    assert close(default.last_hidden_state, truth["last_hidden_state"])


def test_batch_axes_jit_and_vmap(model):
    """[T], [B, T], [2, B, T]; one trace for all values of a shape."""
    inputs = draw("inputs")
    batched = model(**inputs)
    traces = []
    counted = jax.jit(lambda inputs: traces.append(0) or model(**inputs))
    assert same(counted(inputs), batched)
    counted({**inputs, "input_ids": inputs["input_ids"][::-1].copy()})
    assert len(traces) == 1
    single = [run(model, {name: array[i] for name, array in inputs.items()}) for i in range(3)]
    assert single[0].last_hidden_state.shape == (7, 33) and single[0].pooler_output.shape == (33,)
    assert same(jax.tree.map(lambda *rows: np.stack(rows), *single), batched)
    twice = run(model, {name: np.stack([array, array[::-1]]) for name, array in inputs.items()})
    assert same(twice, jax.tree.map(lambda array: np.stack([array, array[::-1]]), batched))
    assert same(jax.jit(jax.vmap(lambda each: model(**each)))(inputs), batched)


def test_mask_for_each_query():
    """[*B, T, S] is transformers' [B, 1, T, S], additive and floating there."""
    double = hugging_face("inputs", **ONE_LAYER)
    inputs = draw("pairs")
    pairs = np.random.default_rng(0).integers(0, 2, (3, 7, 7))
    pairs[1, 2] = 0
    additive = np.where(pairs[:, None] != 0, 0.0, np.finfo(np.float64).min)
    truth = theirs(double, {**inputs, "attention_mask": additive})["last_hidden_state"]
    inputs["attention_mask"] = pairs
    forms = (
        (inputs, truth),
        ({name: array[1] for name, array in inputs.items()}, truth[1]),
        ({name: array[:, None] for name, array in inputs.items()}, truth[:, None]),
    )
    limit = criterion.OUTPUT_TOLERANCE * criterion.output_scale(truth)
    with jax.enable_x64(True):
        model = converted(double)
        for given, expected in forms:
            found = np.asarray(run(model, given).last_hidden_state)
            assert found.shape == expected.shape and np.max(np.abs(found - expected)) <= limit


def test_masked_tokens_have_no_influence(model):
    inputs = draw("inputs")
    inputs["attention_mask"][:] = np.arange(7) < 4
    changed = {**inputs, "input_ids": inputs["input_ids"].copy()}
    changed["input_ids"][:, 4:] = 7
    one, other = (run(model, given).last_hidden_state[:, :4] for given in (inputs, changed))
    assert np.array_equal(one, other)


def test_empty_batches_and_sequences(model):
    assert run(model, {"input_ids": np.zeros((0, 5), int)}).last_hidden_state.shape == (0, 5, 33)
    with pytest.raises(ValueError, match="at least 1"):
        model(np.zeros((2, 0), int))
    bare = converted(hugging_face("inputs", pooler=False, **ONE_LAYER).float())
    nothing = run(bare, {"input_ids": np.zeros((2, 0), int)})
    assert nothing.last_hidden_state.shape == (2, 0, 33) and nothing.pooler_output is None


IDS = np.zeros((3, 7), np.int64)
MASK = np.ones((3, 7), np.int64)


def with_value(value, array=IDS):
    changed = array.copy()
    changed[1, 2] = value
    return changed


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "`input_ids` must lie in [0, 31), got values from 0 to 31", {"input_ids": with_value(31)}),
        (ValueError, "got values from -1 to 0", {"input_ids": with_value(-1)}),
        (ValueError, "to 4294967296", {"input_ids": with_value(2**32)}),
        (ValueError, "got values from 0 to 31", {"input_ids": jnp.asarray(with_value(31))}),
        (ValueError, "`token_type_ids` must lie in [0, 3)", {"token_type_ids": with_value(3)}),
        (ValueError, "`position_ids` must lie in [0, 17)", {"position_ids": with_value(17)}),
        (ValueError, "at most max_position_embeddings=17 tokens", {"input_ids": np.zeros((1, 18), int)}),
        (TypeError, "`input_ids` must be integers, got dtype float64", {"input_ids": IDS * 1.0}),
        (TypeError, "got dtype bool", {"input_ids": IDS == 0}),
        (ValueError, "`input_ids` must be [*B, T]", {"input_ids": np.zeros((), int)}),
        (ValueError, "`token_type_ids` must be [*B, T] = (3, 7)", {"token_type_ids": IDS[:, :5]}),
        (ValueError, "`token_type_ids`", {"token_type_ids": IDS[:, :1]}),
        (ValueError, "`position_ids`", {"position_ids": IDS[:2]}),
        (ValueError, "`position_ids`", {"position_ids": IDS[None]}),
        (TypeError, "attention_mask != 0", {"attention_mask": MASK * 1.0}),
        (ValueError, "[*B, S] = (3, 7) or [*B, T, S] = (3, 7, 7)", {"attention_mask": MASK[:, :5]}),
        (ValueError, "`attention_mask`", {"attention_mask": MASK[:1]}),
        (ValueError, "`attention_mask`", {"attention_mask": MASK[:, None, None, :]}),
    ],
)
def test_refused(model, error, words, arguments):
    with pytest.raises(error) as caught:
        model(**{"input_ids": IDS, **arguments})
    assert words in str(caught.value)


def test_out_of_range_under_jit(model):
    """Documented: one above the range reads NaN, a negative one counts from the end."""
    ids = (np.array([3, 30, value]) for value in (30, 31, -1))
    inside, above, negative = (run(model, {"input_ids": each}).last_hidden_state for each in ids)
    assert np.isnan(above).all() and np.array_equal(inside, negative)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        run(model, {"input_ids": np.zeros(18, int)})


def test_initial_parameters():
    """Drawn as BERT's, not as torch.nn's."""
    config = BertConfig(**{**SMALL, **ONE_LAYER, "hidden_size": 66, "vocab_size": 200, "initializer_range": 0.5})
    weights = jaxattn.state_dict(jax.jit(lambda: Bert(config, rngs=nnx.Rngs(0)))())
    assert weights.keys() == hugging_face("inputs", **ONE_LAYER).state_dict().keys()
    for name, array in weights.items():
        if name.endswith("bias"):
            assert not array.any(), name
        elif "LayerNorm" in name:
            assert np.all(array == 1), name
        else:
            assert abs(array.std() / 0.5 - 1) < 0.2, name
    words = weights["embeddings.word_embeddings.weight"]
    assert not words[config.pad_token_id].any() and words[6].any()


def test_from_torch_takes_a_live_model():
    double = hugging_face("inputs", **ONE_LAYER).float()
    module = jaxattn.from_torch(double)
    assert isinstance(module, Bert) and module.config == BertConfig(**{**SMALL, **ONE_LAYER})
    state = double.state_dict()
    written = jaxattn.state_dict(module)
    assert written.keys() == state.keys()
    assert all(torch.equal(torch.from_numpy(written[name]), state[name]) for name in state)
