"""Transformer beyond the laws: final norms, initial weights, masks, custom stacks, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import Transformer
from jaxattn.layers import PReLU
from torchref.core.plain_path import plain_path

from ..errors import refuses
from ..inputs import B, H, S, T, generator, randomise
from ..tolerances import close

N, E, FF = 2, 2 * H, 13
RNG = generator("transformer")
SRC = RNG.normal(size=(S, B, E)).astype(np.float32)
TGT = RNG.normal(size=(T, B, E)).astype(np.float32)


def transformer(*layers: int, **options) -> nn.Transformer:
    encoder, decoder = layers or (1, 1)
    return randomise(nn.Transformer(E, N, encoder, decoder, FF, **options), "transformer")


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_both_stacks_end_on_a_norm_and_keys_are_torch_keys():
    oracle = transformer(2, 1, norm_first=True, activation=nn.PReLU())
    for layer in oracle.decoder.layers:  # torch's copies lost it
        layer.activation = dict(layer.named_children())["activation"]
    state = jaxattn.state_dict(jaxattn.from_torch(oracle))
    assert set(state) == set(oracle.state_dict())
    assert {"encoder.norm.weight", "decoder.norm.bias", "encoder.layers.1.activation.weight"} <= set(state)
    ours = Transformer(E, N, 2, 1, FF, activation=PReLU(), rngs=nnx.Rngs(0))
    assert {key: value.shape for key, value in jaxattn.state_dict(ours).items()} == {
        key: tuple(value.shape) for key, value in oracle.state_dict().items()
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_unbatched():
    oracle, (src, tgt) = transformer(), (SRC[:, 0], TGT[:, 0])
    with torch.no_grad(), plain_path():
        expected = oracle(torch.from_numpy(src), torch.from_numpy(tgt))
    assert close(jax.jit(jaxattn.from_torch(oracle))(src, tgt), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
def test_the_square_mask(dtype):
    mask = Transformer.generate_square_subsequent_mask(T, dtype=dtype)
    expected = nn.Transformer.generate_square_subsequent_mask(T, dtype=getattr(torch, dtype))
    assert mask.dtype == dtype and np.array_equal(mask, expected)
    assert Transformer.generate_square_subsequent_mask(0).shape == (0, 0)
    with refuses(TypeError, "must be a floating-point"):
        Transformer.generate_square_subsequent_mask(T, dtype=jnp.int32)


def test_initial_matrices_are_xavier_uniform_and_layers_differ():
    """Bound √(6 / (fan_in + fan_out)); torch's layers alone have Kaiming's 1/√fan_in, here 0.125 for linear1."""
    module: Any = Transformer(64, 2, 2, 1, 512, rngs=nnx.Rngs(0))
    state = jaxattn.state_dict(module)
    bounds = {"linear1.weight": (64 + 512), "self_attn.in_proj_weight": 4 * 64, "self_attn.out_proj.weight": 128}
    for name, fans in bounds.items():
        for stack in ("encoder", "decoder"):
            largest = np.abs(state[f"{stack}.layers.0.{name}"]).max()
            assert 0.98 * np.sqrt(6 / fans) < largest <= np.sqrt(6 / fans)
    assert not np.array_equal(state["encoder.layers.0.linear1.weight"], state["encoder.layers.1.linear1.weight"])


def test_custom_stacks_are_called_as_the_own_ones_and_left_as_they_are():
    class Encoder(nnx.Module):
        def __call__(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
            return 2 * src

    class Decoder(nnx.Module):
        def __call__(self, tgt, memory, *, deterministic, **masks):
            assert masks.keys() > {"tgt_mask", "memory_mask", "memory_is_causal"} and not deterministic
            return tgt + memory[:T]

    module = Transformer(E, N, custom_encoder=Encoder(), custom_decoder=Decoder(), rngs=nnx.Rngs(0))
    assert close(module(SRC, TGT, deterministic=False), TGT + 2 * SRC[:T])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    ("src", "tgt", "sentence"),
    [
        (SRC[:, 1:], TGT, "The batch axes of `src`, `tgt` must be equal"),
        (SRC[..., 1:], TGT, "`src` must be .* with last axis 22"),
        (SRC, TGT[..., 1:], "`tgt` must be .* with last axis 22"),
    ],
    ids=["batch", "src features", "tgt features"],
)
def test_shapes_that_both_refuse(src, tgt, sentence):
    oracle = transformer()
    with pytest.raises(RuntimeError):
        oracle(torch.from_numpy(src), torch.from_numpy(tgt))
    with refuses(ValueError, sentence):
        jaxattn.from_torch(oracle)(src, tgt)


def test_a_mask_for_no_part_is_refused():
    module = jaxattn.from_torch(transformer())
    with refuses(ValueError, "must be for encoder, decoder or for parts of them, got layers.0.dropout"):
        module(SRC, TGT, dropout_masks={"layers.0.dropout": SRC})
