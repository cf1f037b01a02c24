"""Attention of other libraries: the weights arrive in their layouts, and what is absent or wrong gets no number."""

import numpy as np
import pytest
import torch

from benchmarks import module_peers
from jaxattn.interleaved import COMPILED, TORCH_EAGER
from jaxattn.timing import ParityFailure

from .conftest import ONCE

SIZES = {"batch": 2, "length": 5, "embed_dim": 6, "num_heads": 2}


def absent(weights):
    raise ImportError("no such package")


def test_split_weights_are_those_of_the_projections():
    original = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    torch.nn.init.normal_(original.in_proj_bias)
    weights = module_peers.split_weights(original, 2)
    x = np.random.default_rng(0).standard_normal(6).astype(np.float32)
    packed = torch.nn.functional.linear(torch.from_numpy(x), original.in_proj_weight, original.in_proj_bias)
    ours = [np.einsum("d,dnh->nh", x, weights[f"{name}_kernel"]) + weights[f"{name}_bias"] for name in "qkv"]
    np.testing.assert_allclose(np.concatenate(ours).reshape(-1), packed.detach().numpy(), atol=1e-6)
    merged = np.einsum("nh,nhd->d", x.reshape(2, 3), weights["o_kernel"]) + weights["o_bias"]
    np.testing.assert_allclose(merged, original.out_proj(torch.from_numpy(x)).detach().numpy(), atol=1e-6)


def test_peers_that_agree_are_timed_and_others_left_out(monkeypatch, capsys):
    flax = module_peers.PEERS["flax.nnx.MultiHeadAttention"]
    peers = {"flax": flax, "absent": absent, "wrong": lambda weights: lambda x: x * np.nan}
    monkeypatch.setattr(module_peers, "PEERS", peers)
    result = module_peers.measure_peers(SIZES, ONCE)
    assert list(result["timings"]) == [COMPILED, "flax", TORCH_EAGER]
    assert list(result["ratio_over"]) == ["flax", TORCH_EAGER]
    assert "no such package" in result["left_out"]["absent"] and "differs by nan" in result["left_out"]["wrong"]
    assert "absent is left out" in capsys.readouterr().err


def test_ours_must_agree(monkeypatch):
    monkeypatch.setattr(module_peers, "_ours", lambda original: lambda x: x)
    monkeypatch.setattr(module_peers, "interleave", lambda *given, **how: pytest.fail("timed"))
    with pytest.raises(ParityFailure):
        module_peers.measure_peers(SIZES, ONCE)
