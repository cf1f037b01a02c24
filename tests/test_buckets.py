"""jaxattn.compile(pad_to=…): few compilations for many lengths, and what comes out is what comes out without."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn
from jaxattn.models import Bert, BertConfig

from .capturing import make

B, D, N = 3, 14, 2
BUCKETS = (4, 7)
#: Around the edges of the buckets.
LENGTHS = (1, 4, 5)
EXACT = 1e-12
#: Compiling is most of the time of these tests.
quickly = partial(jaxattn.compile, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def float64_module(build) -> Any:
    return make(lambda: build(param_dtype=jnp.float64, rngs=nnx.Rngs(0)))


def make_encoder() -> Any:
    layer = float64_module(lambda **options: jaxattn.TransformerEncoderLayer(D, N, 9, batch_first=True, **options))
    return jaxattn.TransformerEncoder(layer, 1)


def make_attention(**settings: Any) -> Any:
    return float64_module(lambda **options: jaxattn.MultiheadAttention(D, N, batch_first=True, **settings, **options))


def make_bert() -> Any:
    sizes = {"hidden_size": D, "num_attention_heads": N, "intermediate_size": 9, "num_hidden_layers": 1}
    config = BertConfig.from_dict({**sizes, "vocab_size": 17, "max_position_embeddings": 13, "type_vocab_size": 2})
    return float64_module(lambda **options: Bert(config, **options))


def blocked(length: int) -> np.ndarray:
    """[B, T], True = blocked: one sentence ends early, one has a hole."""
    mask = np.zeros((B, length), bool)
    mask[0, (length + 1) // 2 :] = True
    mask[1, length // 2] = length > 1
    return mask


def causal(length: int) -> np.ndarray:
    return ~np.tri(length, dtype=bool)


def floating(mask: np.ndarray) -> np.ndarray:
    return np.where(mask, -np.inf, 0.25)


def assert_exact(result, expected) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) and a.shape == b.shape and a.dtype == b.dtype == jnp.float64
        np.testing.assert_allclose(a, b, atol=EXACT * max(1, np.abs(np.nan_to_num(b)).max(initial=0)), rtol=0)


MASKS = {
    "none": lambda length: {},
    "padding": lambda length: {"src_key_padding_mask": blocked(length)},
    "floating padding": lambda length: {"src_key_padding_mask": floating(blocked(length))},
    "all blocked": lambda length: {"src_key_padding_mask": blocked(length) | (np.arange(B) == 0)[:, None]},
    "causal": lambda length: {"MASK": causal(length), "is_causal": True},
    "floating pairs": lambda length: {"MASK": floating(causal(length)), "src_key_padding_mask": blocked(length)},
    "pairs for each head": lambda length: {"MASK": np.stack([causal(length)] * B * N)},
}


@pytest.mark.parametrize(("whole", "given"), [*((True, given) for given in MASKS), (False, "floating pairs")])
def test_encoders(whole, given):
    module = make_encoder() if whole else make_encoder().layers[0]
    fast, unpadded = quickly(module, pad_to=BUCKETS), quickly(module)
    for length in LENGTHS:
        masks = MASKS[given](length)
        masks = {("mask" if whole else "src_mask") if name == "MASK" else name: m for name, m in masks.items()}
        x = jnp.asarray(draw(B, length, D))
        assert_exact(fast(x, **masks), unpadded(x, **masks))
    assert (fast.compilations, unpadded.compilations) == (len(BUCKETS), len(LENGTHS))


ATTENTION = {
    "none": lambda length: {},
    "no weights": lambda length: {"need_weights": False},
    "padding": lambda length: {"key_padding_mask": blocked(length), "average_attn_weights": False},
    "all blocked": lambda length: {"key_padding_mask": blocked(length) | (np.arange(B) == 0)[:, None]},
    "all blocked by -inf": lambda length: {"attn_mask": np.full((length, length), -np.inf), "empty_row": "zero"},
    "causal": lambda length: {"attn_mask": causal(length)},
}


@pytest.mark.parametrize("given", ATTENTION)
def test_self_attention(given):
    module = make_attention()
    fast, unpadded = quickly(module, pad_to=BUCKETS), quickly(module)
    for length in LENGTHS:
        x = draw(B, length, D)
        assert_exact(fast(x, x, x, **ATTENTION[given](length)), unpadded(x, x, x, **ATTENTION[given](length)))
    assert fast.compilations == len(BUCKETS)


def ids(length: int, below: int = 17) -> np.ndarray:
    return np.random.default_rng(1).integers(0, below, (B, length))


BERT = {
    "none": lambda length: {},
    "mask and types": lambda length: {
        "attention_mask": 1 - blocked(length).astype(int),
        "token_type_ids": ids(length, 2),
    },
    "mask of pairs and positions": lambda length: {
        "attention_mask": np.stack([~causal(length)] * B),
        "position_ids": np.arange(length) + 2,
    },
}


@pytest.mark.parametrize("given", BERT)
def test_bert(given):
    module = make_bert()
    fast, unpadded = quickly(module, pad_to=BUCKETS), quickly(module)
    for length in LENGTHS:
        assert_exact(fast(ids(length), **BERT[given](length)), unpadded(ids(length), **BERT[given](length)))
    assert fast.compilations == len(BUCKETS)


def test_select_picks_and_unbatched_inputs_work():
    bert = make_bert()
    unpadded = jaxattn.compile(bert)
    hidden = jaxattn.compile(bert, select=lambda result: result.last_hidden_state, pad_to=BUCKETS)
    pooled = jaxattn.compile(bert, select=lambda result: {"pooled": result.pooler_output}, pad_to=BUCKETS)
    for given in (ids(5), ids(5)[0]):
        assert_exact(hidden(given), unpadded(given).last_hidden_state)
        assert_exact(pooled(given), {"pooled": unpadded(given).pooler_output})


def test_a_batch_as_long_as_the_bucket_is_not_cut():
    layer, attention = make_encoder().layers[0], make_attention()
    x = draw(7, 5, D)
    assert_exact(jaxattn.compile(layer, pad_to=BUCKETS)(x), jaxattn.compile(layer)(x))
    assert_exact(jaxattn.compile(layer, pad_to=(1, 2))(x[:, :1]), jaxattn.compile(layer)(x[:, :1]))
    assert_exact(jaxattn.compile(attention, pad_to=(D,))(x, x, x), jaxattn.compile(attention)(x, x, x))


def test_one_array_stays_one_array():
    class Same(nnx.Module):
        def __call__(self, query, key, value, key_padding_mask=None):
            return query * 0 + (1 if query is key is value else 2)

    x = draw(B, 5, D)
    fast = jaxattn.compile(Same(), pad_to=BUCKETS)
    for array in (x, jnp.asarray(x)):
        assert (np.asarray(fast(array, array, array)) == 1).all()
        assert (np.asarray(fast(array, array, array + 1)) == 2).all()


def test_weights_changed_in_place_are_seen():
    encoder, x = make_encoder(), draw(B, 5, D)
    fast = jaxattn.compile(encoder, pad_to=BUCKETS)
    fast(x)
    jaxattn.load_state_dict(encoder, {name: 2 * array for name, array in jaxattn.state_dict(encoder).items()})
    assert_exact(fast(x), jaxattn.compile(encoder)(x))
    assert fast.compilations == 1


def test_gradients_vmap_and_jit():
    encoder, x = make_encoder().layers[0], jnp.asarray(draw(B, 5, D))
    fast = jaxattn.compile(encoder, pad_to=BUCKETS)
    expected = jax.grad(lambda x: (encoder(x) ** 2).sum())(x)
    np.testing.assert_allclose(
        jax.grad(lambda x: (fast(x) ** 2).sum())(x), expected, atol=1e-11 * np.abs(expected).max()
    )
    assert_exact(jax.vmap(fast)(x), encoder(x))
    assert_exact(jax.jit(lambda x: fast(x))(x), encoder(x))


def test_rngs_advance():
    encoder, x, rngs = make_encoder(), draw(B, 5, D), nnx.Rngs(dropout=0)
    fast = jaxattn.compile(encoder, pad_to=BUCKETS)
    first, second = (np.asarray(fast(x, deterministic=False, rngs=rngs)) for _ in range(2))
    assert first.shape == x.shape and not np.array_equal(first, second) and rngs.dropout.count[...] == 2 * 4
    assert fast.compilations == 1


def test_nothing_else_is_compiled_for_a_length(caplog):
    encoder = make_encoder()
    fast = jaxattn.compile(encoder, pad_to=(11,))
    fast(jnp.asarray(draw(B, 3, D)))
    inputs = [jnp.asarray(draw(B, length, D)) for length in (5, 6, 9)]
    masks = [jnp.asarray(np.zeros(x.shape[:2], bool)) for x in inputs]
    with jax.log_compiles(True):
        for x, mask in zip(inputs, masks, strict=True):
            fast(x, src_key_padding_mask=mask)
    assert [record.message for record in caplog.records if "Compiling" in record.message] == []
    assert fast.compilations == 1


@pytest.mark.parametrize("lengths", [(), (0, 4), (8, 4), (4, 4), (4.0,), (True, 4)])
def test_lengths_must_increase(lengths):
    with pytest.raises((ValueError, TypeError), match="`pad_to` must be increasing|pad_to"):  # ours, or the hook's
        jaxattn.compile(make_encoder(), pad_to=lengths)


def test_other_modules_are_refused():
    linear = make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0)))
    with pytest.raises(
        NotImplementedError, match=r"`pad_to` needs a module with the arguments .* got a Linear\(inputs"
    ):
        jaxattn.compile(linear, pad_to=BUCKETS)

    class Decoder(nnx.Module):
        def __call__(self, src, tgt, src_key_padding_mask=None):
            return src

    with pytest.raises(NotImplementedError, match="no other required ones"):
        jaxattn.compile(Decoder(), pad_to=BUCKETS)
    time_first = make(lambda: jaxattn.TransformerEncoderLayer(D, N, 9, rngs=nnx.Rngs(0)))
    with pytest.raises(NotImplementedError, match="batch_first=True"):
        jaxattn.compile(time_first, pad_to=BUCKETS)


def test_what_would_be_inexact_is_refused():
    attention, bert, x = make_attention(add_zero_attn=True), make_bert(), draw(B, 5, D)
    fast = jaxattn.compile(attention, pad_to=BUCKETS)
    with pytest.raises(NotImplementedError, match="must be the length, got shape"):
        fast(x, x, x)
    assert_exact(fast(x, x, x, need_weights=False), attention(x, x, x, need_weights=False))
    with pytest.raises(ValueError, match="uniform"):
        fast(x, x, x, empty_row="uniform")
    with pytest.raises(TypeError, match="where the length is in `dropout_mask`"):
        fast(x, x, x, dropout_mask=np.ones((B, N, 5, 5)))
    with pytest.raises(NotImplementedError, match="`select` must pick"):
        jaxattn.compile(bert, select=lambda result: result.last_hidden_state.mean(-2), pad_to=BUCKETS)(ids(5))
    with pytest.raises(ValueError, match="`attention_mask` must allow at least one token"):
        jaxattn.compile(bert, pad_to=BUCKETS)(ids(5), np.zeros((B, 5), int))


def test_lengths_that_do_not_fit_are_told():
    fast, bert = jaxattn.compile(make_encoder(), pad_to=BUCKETS), jaxattn.compile(make_bert(), pad_to=BUCKETS)
    with pytest.raises(ValueError, match=r"in \[1, 7\], got shape \(3, 8, 14\); truncate it, or add a longer length"):
        fast(draw(B, 8, D))
    with pytest.raises(ValueError, match=r"in \[1, 7\], got shape \(3, 0\)"):
        bert(ids(0))
    with pytest.raises(ValueError, match=r"`src` must have a length \(axis -2\)"):
        fast(draw(D))
    with pytest.raises(ValueError, match=r"`src_key_padding_mask` must have the length of `src`, 5, on axis -1"):
        fast(draw(B, 5, D), src_key_padding_mask=blocked(4))
    with pytest.raises(ValueError, match=r"`mask` must have the length of `src`, 5, on axis -2 and -1"):
        fast(draw(B, 5, D), mask=causal(6))
    with pytest.raises(ValueError, match=r"`token_type_ids` must have the length"):
        bert(ids(5), token_type_ids=ids(4, 2))
