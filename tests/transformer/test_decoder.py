"""TransformerDecoderLayer and TransformerDecoder beyond the laws: maps, promises, refusals."""

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from torchref.core.plain_path import plain_path

from ..errors import refuses
from ..inputs import B, H, S, T, generator, randomise
from ..tolerances import close

N, E, FF = 2, 2 * H, 13
RNG = generator("decoder")
TGT = RNG.normal(size=(B, T, E)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, E)).astype(np.float32)


def decoder(num_layers: int = 2, **options) -> nn.TransformerDecoder:
    layer = nn.TransformerDecoderLayer(E, N, FF, batch_first=True, **options)
    return randomise(nn.TransformerDecoder(layer, num_layers, nn.LayerNorm(E)), "decoder")


def test_state_dict_keys_are_torch_keys():
    oracle = decoder(bias=False)
    assert set(jaxattn.state_dict(jaxattn.from_torch(oracle))) == set(oracle.state_dict())


def test_capture_gives_the_maps_of_every_layer():
    """Torch's layers ask for none; asked again with each attention's inputs, it gives these."""
    oracle, expected = decoder(), {}

    def ask(path: str):
        def hook(part, inputs, kwargs, result):
            if kwargs["need_weights"]:
                return
            again = {**kwargs, "need_weights": True, "average_attn_weights": False, "is_causal": False}
            expected[path] = part(*inputs, **again)[1]

        return hook

    for path, part in oracle.named_modules():
        if isinstance(part, nn.MultiheadAttention):
            part.register_forward_hook(ask(path), with_kwargs=True)
    mask, padding = torch.rand(T, S) < 0.3, torch.arange(T) >= torch.tensor([[4], [5], [3]])
    masks = {"memory_mask": mask, "tgt_key_padding_mask": padding}
    mask[:, 0] = False
    twin = jaxattn.from_torch(decoder())
    with torch.no_grad(), plain_path():
        oracle(torch.from_numpy(TGT), torch.from_numpy(MEMORY), **masks)
    _, seen = jaxattn.capture(twin, TGT, MEMORY, **masks)
    assert len(expected) == 4
    for path, weights in expected.items():
        assert close(seen[f"{path}:weights"], weights)


def test_the_causal_promise():
    module = jaxattn.from_torch(decoder(1))
    blocked = ~np.tri(T, dtype=bool)
    promised = module(TGT, MEMORY, blocked, tgt_is_causal=True)
    assert close(promised, module(TGT, MEMORY, blocked)) and not close(promised, module(TGT, MEMORY))
    with refuses(ValueError, "promises that `attn_mask` is the causal mask"):
        module(TGT, MEMORY, ~blocked, tgt_is_causal=True)
    with refuses(ValueError, "got attn_mask=None"):
        module(TGT, MEMORY, memory_is_causal=True)


@pytest.mark.parametrize(
    ("tgt", "memory", "options", "error", "sentence"),
    [
        (TGT, MEMORY[1:], {}, ValueError, "batch axes"),
        (TGT, MEMORY[..., 1:], {}, ValueError, "last axis 22"),
        (TGT[..., 1:], MEMORY, {}, ValueError, "last axis 22"),
        (TGT, MEMORY[0], {}, ValueError, "batch axes"),
        (TGT, MEMORY, {"memory_mask": torch.zeros(T, T, dtype=torch.bool)}, ValueError, r"\(5, 7\) or \(6, 5, 7\)"),
        (TGT, MEMORY, {"memory_key_padding_mask": torch.zeros(B, T, dtype=torch.bool)}, ValueError, r"\[\*B, S\]"),
        (TGT, MEMORY, {"tgt_mask": torch.zeros(T, T, dtype=torch.int64)}, TypeError, "must be boolean"),
    ],
    ids=["batch", "memory features", "features", "ranks", "memory mask", "memory padding", "integer mask"],
)
def test_what_both_refuse(tgt, memory, options, error, sentence):
    oracle = decoder(1)
    with pytest.raises((RuntimeError, AssertionError)), torch.no_grad(), plain_path():
        oracle(torch.from_numpy(tgt), torch.from_numpy(memory), **options)
    with refuses(error, sentence):
        jaxattn.from_torch(oracle)(tgt, memory, **options)


@pytest.mark.parametrize("given", ["tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask"])
def test_an_error_tells_which_mask_is_meant(given):
    module = jaxattn.from_torch(decoder(1))
    with pytest.raises(ValueError, match="must be") as caught:
        module(TGT, MEMORY, **{given: np.zeros((2, 2), bool)})
    attention = {"tgt": "self_attn", "memory": "multihead_attn"}[given.split("_")[0]]
    assert [(f"of `{attention}` is `{given}`" in note) for note in caught.value.__notes__] == [True]


def test_a_module_as_activation_is_lost_in_torchs_copies_of_a_layer():
    """They compute relu, whatever the module; so does the twin, and says so."""
    oracle, relu = decoder(1, activation=nn.GELU()), decoder(1)
    inputs = torch.from_numpy(TGT), torch.from_numpy(MEMORY)
    with torch.no_grad(), plain_path():
        lost, expected = oracle(*inputs), relu(*inputs)
        oracle.layers[0].activation = dict(oracle.layers[0].named_children())["activation"]
        repaired = oracle(*inputs)
    assert torch.equal(lost, expected) and not close(repaired, lost)
    with pytest.warns(UserWarning, match="has the activation GELU.* but PyTorch computes relu"):
        assert close(jaxattn.from_torch(decoder(1, activation=nn.GELU()))(TGT, MEMORY), lost)
    assert close(jaxattn.from_torch(oracle)(TGT, MEMORY), repaired)
    with refuses(NotImplementedError, "Its parameters are never used"):
        jaxattn.from_torch(decoder(1, activation=nn.PReLU()))
