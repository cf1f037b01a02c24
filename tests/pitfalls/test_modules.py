"""Modules of torch.nn: norms, initial weights, modes and widths. Expected values by hand or from torch."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from torchref.core.plain_path import plain_path

from ..inputs import generator, randomise
from ..tolerances import close

RNG = generator("pitfalls of modules")


def keys(module: nnx.Module) -> set[str]:
    return {name for name in jaxattn.state_dict(module) if ".norm.weight" in name or name == "norm.weight"}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_where_final_norms_are():
    """C27: both stacks of Transformer have one; a stack by itself has none but the one that it is given."""
    layer = jaxattn.from_torch(nn.TransformerEncoderLayer(4, 2, 7))
    norm = jaxattn.from_torch(nn.LayerNorm(4))
    assert keys(jaxattn.TransformerEncoder(layer, 1)) == set()
    assert keys(jaxattn.TransformerEncoder(layer, 1, norm)) == {"norm.weight"}
    assert keys(jaxattn.from_torch(nn.Transformer(4, 2, 1, 1, 7))) == {"encoder.norm.weight", "decoder.norm.weight"}


@pytest.mark.parametrize(("norm_first", "expected"), [(True, [3.0, 1.0]), (False, [1.0, -1.0])])
def test_the_residual_of_pre_norm_is_not_normalised(norm_first, expected):
    """C27: sublayers that give nothing leave x with norm_first, and LayerNorm(x) without."""
    oracle = nn.TransformerEncoderLayer(2, 1, 3, batch_first=True, norm_first=norm_first).eval()
    with torch.no_grad():
        for part in (oracle.self_attn.out_proj, oracle.linear2):
            part.weight.zero_()
            part.bias.zero_()
    got = jax.jit(jaxattn.from_torch(oracle))(np.array([[[3.0, 1.0]]], np.float32))
    assert np.allclose(got, [[expected]], atol=1e-4)


def test_initial_spread_of_packed_and_separate_projections():
    """C28: Xavier over (3E, E) is √2 narrower than over (E, E): 0.4330 and 0.6124 at E = 8."""
    for kdim, names, bound in ((8, ["in_proj_weight"], 0.4330), (7, ["q_proj_weight"], 0.6124)):
        drawn = [jaxattn.MultiheadAttention(8, 2, kdim=kdim, rngs=nnx.Rngs(seed)) for seed in range(3)]
        largest = max(np.abs(jaxattn.state_dict(module)[name]).max() for module in drawn for name in names)
        assert 0.97 * bound < largest <= bound + 1e-4


def test_every_mode_of_torch_is_met():
    """D03: train and eval, with gradients and without, at dropout 0 and with its fast path allowed."""
    oracle = randomise(nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, batch_first=True), "pitfalls")
    x = RNG.normal(size=(3, 5, 6)).astype(np.float32)
    expected = jax.jit(jaxattn.from_torch(oracle))(x)
    for training, gradients in product((True, False), repeat=2):
        with torch.set_grad_enabled(gradients):
            assert close(expected, oracle.train(training)(torch.from_numpy(x)).detach())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [1, 3, 6, 7])
def test_any_width_of_head_in_low_precision(width, dtype):
    """D07: finite, and as far from the truth as half precision is: values are at most 4 here."""
    q, k, v = (RNG.normal(size=(5, 2, width)).clip(-4, 4) for _ in range(3))
    low = [jnp.asarray(x, dtype) for x in (q, k, v)]
    q, k, v = (torch.from_numpy(np.asarray(x, np.float64)).transpose(0, 1) for x in low)
    truth = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).numpy()
    got = np.asarray(jax.jit(jaxattn.dot_product_attention)(*low).output, np.float64)
    assert np.abs(got - truth).max() <= 4 * float(jnp.finfo(dtype).eps)


def test_padding_may_be_scattered():
    """D02: every second position is padding; torch on its plain path is the truth."""
    oracle = randomise(nn.TransformerEncoderLayer(6, 2, 7, batch_first=True), "pitfalls")
    x, padding = RNG.normal(size=(1, 4, 6)).astype(np.float32), np.array([[False, True, False, True]])
    with torch.no_grad(), plain_path():
        expected = oracle(torch.from_numpy(x), src_key_padding_mask=torch.from_numpy(padding))
    assert close(jax.jit(jaxattn.from_torch(oracle))(x, src_key_padding_mask=padding), expected)
