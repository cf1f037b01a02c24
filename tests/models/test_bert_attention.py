"""transformers' BertSelfAttention, the attention class by itself, against its twin."""

import numpy as np
import pytest
import torch
import transformers

import jaxattn

from ..inputs import generator, randomise

B, T, D, N = 3, 5, 6, 2


def attention(**options):
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = transformers.BertConfig(hidden_size=D, num_attention_heads=N, attention_probs_dropout_prob=0.3)
    config._attn_implementation = "eager"
    return randomise(BertSelfAttention(config, **options), "bert attention")


def test_outputs_weights_and_gradients_are_the_originals():
    module = attention()
    x = generator("bert attention").standard_normal((B, T, D))
    mask = np.where(np.arange(T) < np.array([5, 2, 4])[:, None, None, None], 0.0, np.finfo(np.float32).min)
    jaxattn.parity.compare(module, jaxattn.from_torch(module), x, mask).assert_ok()


def test_dropout_of_the_weights_is_the_originals(monkeypatch):
    module, twin = attention().train(), jaxattn.from_torch(attention())
    x = generator("bert attention").standard_normal((B, T, D)).astype(np.float32)
    keep = generator("kept").random((B, N, T, T)) > 0.3
    kept = torch.from_numpy(keep)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda weights, p, training: weights * kept / (1 - p))
    theirs = [value.detach().numpy() for value in module(torch.from_numpy(x))]
    ours = twin(x, deterministic=False, dropout_mask=keep)
    assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(ours, theirs, strict=True))


def test_a_decoders_attention_is_refused():
    with pytest.raises(NotImplementedError, match="of a decoder"):
        jaxattn.from_torch(attention(is_causal=True))
