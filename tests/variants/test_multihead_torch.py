"""MultiheadAttention: what torch.nn's contract says beyond the laws."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional as F

import jaxattn

from ..errors import refuses
from ..inputs import B, H, S, T, V, generator, randomise
from ..tolerances import close

N = 2
E = N * H
RNG = generator("multihead_torch")
QUERY, KEY = RNG.normal(size=(B, T, E)).astype(np.float32), RNG.normal(size=(B, S, E)).astype(np.float32)


def pair(**options):
    oracle = randomise(torch.nn.MultiheadAttention(E, N, batch_first=True, **options), "multihead_torch")
    return oracle, jaxattn.from_torch(oracle)


def run(oracle, *inputs, **options):
    tensors = [torch.from_numpy(x) for x in inputs]
    named = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with torch.no_grad():
        return oracle(*tensors, **named)


@pytest.mark.parametrize(
    "options",
    [{}, {"kdim": E, "vdim": E}, {"kdim": V}, {"vdim": V}, {"bias": False}, {"add_bias_kv": True, "bias": False}],
)
def test_the_same_names_and_shapes_in_the_state_dict(options):
    oracle, module = pair(**options)
    ours = {key: tensor.shape for key, tensor in jaxattn.state_dict(module).items()}
    assert ours == {key: tuple(tensor.shape) for key, tensor in oracle.state_dict().items()}


def test_packed_rows_are_q_k_v_and_heads_are_slices_of_each():
    """Rows filled with their index: head n of q, k, v reads rows nH…, E + nH…, 2E + nH…."""
    _, module = pair()
    weight = np.zeros((3 * E, E), np.float32)
    weight[:, 0] = np.arange(3 * E)
    module.in_proj_weight[...] = jnp.asarray(weight)
    module.in_proj_bias[...] = jnp.zeros(3 * E)
    one = jnp.zeros((1, E)).at[0, 0].set(1.0)
    q, k, v = module._project(one)
    assert [float(x[0, n * H]) for x in (q, k, v) for n in range(N)] == [
        p * E + n * H for p in range(3) for n in range(N)
    ]
    apart = module._project(one, one + 0, one + 0)
    assert all(np.array_equal(a, b) for a, b in zip(apart, (q, k, v), strict=True))


@pytest.mark.parametrize("need_weights", [True, False])
def test_an_empty_row_as_torch_gives_it(need_weights):
    oracle, module = pair()
    padding = np.zeros((B, S), bool)
    padding[1] = True
    options = {"key_padding_mask": padding, "need_weights": need_weights}
    output, weights = run(oracle, QUERY, KEY, KEY, **options)
    got = module(QUERY, KEY, KEY, **options)
    assert np.array_equal(np.isnan(got.output), np.isnan(output.numpy()))
    if need_weights:
        assert output[1].isnan().all() and np.isnan(np.asarray(got.weights[1])).all()
    else:
        assert weights is None and close(got.output[1], np.broadcast_to(oracle.out_proj.bias.detach().numpy(), (T, E)))
    assert close(got.output[0], output[0].numpy())
    zero = module(QUERY, KEY, KEY, key_padding_mask=padding, empty_row="zero")
    assert close(zero.output[1], np.broadcast_to(oracle.out_proj.bias.detach().numpy(), (T, E)))


def test_average_is_the_mean_over_heads():
    _, module = pair()
    heads = module(QUERY, KEY, KEY, average_attn_weights=False).weights
    assert heads.shape == (B, N, T, S) and close(module(QUERY, KEY, KEY).weights, heads.mean(axis=1))


def test_unbatched():
    oracle, module = pair()
    output, weights = run(oracle, QUERY[0], KEY[0], KEY[0])
    got = module(QUERY[0], KEY[0], KEY[0])
    assert close(got.output, output.numpy()) and close(got.weights, weights.numpy()) and weights.shape == (T, S)


def test_training_drops_weights_and_returns_them_dropped():
    """With a given keep mask training equals the formula; weights come back after dropout, scaled by 1/(1 − p)."""
    oracle, module = pair(dropout=0.2)
    keep = RNG.random((B, N, T, S)) < 0.7
    _, weights = run(oracle, QUERY, KEY, KEY, average_attn_weights=False)
    got = module(QUERY, KEY, KEY, average_attn_weights=False, deterministic=False, dropout_mask=keep)
    dropped = weights.numpy() * keep * 1.25
    assert close(got.weights, dropped)
    v = F.linear(torch.from_numpy(KEY), oracle.in_proj_weight[2 * E :], oracle.in_proj_bias[2 * E :])
    v = v.reshape(B, S, N, H).detach().numpy()
    merged = np.einsum("bnts,bsnh->btnh", dropped, v).reshape(B, T, E)
    expected = F.linear(torch.from_numpy(merged).float(), oracle.out_proj.weight, oracle.out_proj.bias)
    assert close(got.output, expected.detach().numpy())


def test_dropout_follows_its_key_and_is_off_by_default():
    _, module = pair(dropout=0.5)
    plain = module(QUERY, KEY, KEY).output
    first, again = (module(QUERY, KEY, KEY, deterministic=False, rngs=nnx.Rngs(dropout=1)).output for _ in range(2))
    assert np.array_equal(first, again) and not np.array_equal(first, plain)
    assert np.array_equal(plain, module(QUERY, KEY, KEY, rngs=nnx.Rngs(dropout=1)).output)
    with refuses(ValueError, r"needs `rngs=nnx.Rngs\(dropout=seed\)`"):
        module(QUERY, KEY, KEY, deterministic=False)


def test_initial_weights_have_torch_spread():
    """Xavier over the packed (3E, E): bound √(6 / 4E); biases zero."""
    module = jaxattn.MultiheadAttention(256, 4, rngs=nnx.Rngs(0))
    bound = np.sqrt(6 / (4 * 256))
    largest = np.abs(np.asarray(module.in_proj_weight[...])).max()
    assert 0.99 * bound < largest <= bound
    state = jaxattn.state_dict(module)
    assert not state["in_proj_bias"].any() and not state["out_proj.bias"].any()
    assert np.abs(np.asarray(module.out_proj.kernel[...])).max() <= 1 / 16


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"attn_mask": np.zeros((T, S), np.int64)}, TypeError, "`attn_mask` must be boolean"),
        ({"attn_mask": np.zeros((S, T), bool)}, ValueError, r"`attn_mask` must be \[T, S\]"),
        ({"key_padding_mask": np.zeros((B, T), bool)}, ValueError, "`key_padding_mask` must be"),
        ({"is_causal": True}, ValueError, "got attn_mask=None"),
    ],
)
def test_bad_masks(options, error, sentence):
    _, module = pair()
    with refuses(error, sentence):
        module(QUERY, KEY, KEY, **options)


def test_bad_constructor():
    with refuses(ValueError, "num_heads=5, embed_dim=22"):
        jaxattn.MultiheadAttention(22, 5, rngs=nnx.Rngs(0))
    with refuses(ValueError, r"rate in \[0, 1\), got 1.5"):
        jaxattn.MultiheadAttention(22, 2, dropout=1.5, rngs=nnx.Rngs(0))
