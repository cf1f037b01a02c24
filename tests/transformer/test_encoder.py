"""TransformerEncoderLayer and TransformerEncoder beyond the laws: structure, constants, dropout, activations."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.layers import LayerNorm

from ..errors import refuses
from ..inputs import B, H, T, generator, randomise
from ..tolerances import close

N, E, FF = 2, 2 * H, 13
X = generator("encoder").normal(size=(B, T, E)).astype(np.float32)


def layer(**options) -> nn.TransformerEncoderLayer:
    return randomise(nn.TransformerEncoderLayer(E, N, FF, batch_first=True, **options), "encoder")


@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.SiLU(), nn.Tanh(), torch.nn.functional.silu],
)
def test_activations_are_told_apart(activation):
    oracle = layer(activation=activation)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            expected = oracle(torch.from_numpy(X)).numpy()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert close(jaxattn.from_torch(oracle)(X), expected)


def test_an_unknown_activation_is_refused():
    with refuses(NotImplementedError, "has no Flax twin"):
        jaxattn.from_torch(layer(activation=torch.sin))


def test_epsilon_is_carried():
    """A row of small variance tells 1e-5 from 1e-6: ±0.4472 and ±0.1491 against ±1.0 and ±0.3333."""
    norm = LayerNorm(4, rngs=nnx.Rngs(0))
    row = np.array([0, 0.001, 0.002, 0.003], np.float32)
    assert np.allclose(norm(row), [-0.4472, -0.1491, 0.1491, 0.4472], atol=1e-4)
    module = jaxattn.from_torch(layer(layer_norm_eps=0.25))
    assert module.norm1.epsilon == module.norm2.epsilon == 0.25 and not module.norm1.use_fast_variance


def test_layers_of_a_stack_are_copies_or_the_given_ones():
    one = jaxattn.TransformerEncoderLayer(E, N, FF, rngs=nnx.Rngs(0))
    stack: Any = jaxattn.TransformerEncoder(one, 2)
    stack.layers[0].linear1.bias[...] += 1
    assert not np.array_equal(stack.layers[0].linear1.bias[...], stack.layers[1].linear1.bias[...])
    two = jaxattn.TransformerEncoderLayer(E, N, FF + 1, norm_first=True, rngs=nnx.Rngs(1))
    assert jaxattn.TransformerEncoder([one, two], 2).layers[1] is two
    with refuses(ValueError, "num_layers=3"):
        jaxattn.TransformerEncoder([one, two], 3)


def test_state_dict_keys_are_torch_keys():
    oracle = nn.TransformerEncoder(layer(bias=False), 2, nn.LayerNorm(E), enable_nested_tensor=False)
    assert set(jaxattn.state_dict(jaxattn.from_torch(oracle))) == set(oracle.state_dict())


def test_dropout_only_in_training_and_in_every_place():
    module = jaxattn.from_torch(layer(dropout=0.5))
    plain = module(X)
    assert np.array_equal(plain, module(X, rngs=nnx.Rngs(dropout=0)))
    first, again = (module(X, deterministic=False, rngs=nnx.Rngs(dropout=3)) for _ in range(2))
    assert np.array_equal(first, again) and not close(first, plain)
    assert not close(module(X, deterministic=False, rngs=nnx.Rngs(dropout=4)), first)


def test_training_works_under_jit_and_grad():
    module = jaxattn.from_torch(layer(dropout=0.1))

    @jax.jit
    @jax.value_and_grad
    def step(module, key):
        return (module(X, deterministic=False, rngs=nnx.Rngs(dropout=key)) ** 2).mean()

    # Of the kinds of randomness this one compiles fast.
    (first, gradients), (second, _) = (step(module, jax.random.key(i, impl="rbg")) for i in range(2))
    assert first != second
    found = jaxattn.state_dict(gradients)
    assert set(found) == set(layer().state_dict()) and all(np.isfinite(g).all() for g in found.values())


def test_masks_of_both_kinds_and_the_causal_promise():
    oracle = layer()
    module = jaxattn.from_torch(oracle)
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    as_float = module(X, causal.numpy(), is_causal=True)
    as_bool = module(X, torch.isinf(causal).numpy())
    assert close(as_float, as_bool) and not close(as_bool, module(X))
    with refuses(ValueError, "promises that `attn_mask` is the causal mask"):
        module(X, np.zeros((T, T), bool), is_causal=True)
