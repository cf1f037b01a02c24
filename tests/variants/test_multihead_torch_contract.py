"""MultiheadAttention's contract as PyTorch code relies on it: arguments, empty axes, refusals, training mode."""

import inspect

import jax
import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from torchref.core.plain_path import plain_path

from ..errors import refuses
from ..inputs import B, H, S, T, V, generator, randomise
from ..keeping import drawn_masks, keeping
from ..tolerances import close

N, E = 2, 2 * H
RNG = generator("multihead contract")
QUERY, KEY = RNG.normal(size=(B, T, E)).astype(np.float32), RNG.normal(size=(B, S, E)).astype(np.float32)


def pair(**options):
    oracle = randomise(nn.MultiheadAttention(E, N, batch_first=True, **options), "multihead contract")
    return oracle, jaxattn.from_torch(oracle)


def run(oracle, *inputs, **options):
    with torch.no_grad(), plain_path():
        return oracle(*map(torch.as_tensor, inputs), **options)


def parameters_of(function) -> dict[str, object]:
    """Name → default, torch's `device` and `dtype` left out."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in found if p.name not in ("self", "device", "dtype") and p.kind != p.KEYWORD_ONLY}


def test_arguments_and_defaults_are_torchs():
    ours, theirs = jaxattn.MultiheadAttention, nn.MultiheadAttention
    assert parameters_of(ours.__init__) == parameters_of(theirs.__init__)
    assert parameters_of(ours.__call__) == parameters_of(theirs.forward)


def test_torch_tensors_are_taken_as_they_are():
    oracle, module = pair()
    query, key = torch.from_numpy(QUERY), torch.from_numpy(KEY)
    mask = torch.from_numpy(RNG.normal(size=(T, S))).to(torch.bfloat16)
    padding = torch.arange(S) >= torch.tensor([[4], [7], [6]])
    got = module(query, key, key, attn_mask=mask, key_padding_mask=padding)
    expected = run(oracle, query, key, key, attn_mask=mask.float(), key_padding_mask=padding.float() * -1e30)
    assert close(got.output, expected[0]) and close(got.weights, expected[1])
    inside_jit = jax.jit(lambda x, y: module(x, y, y, attn_mask=mask, key_padding_mask=padding))(QUERY, KEY)
    assert close(inside_jit.output, expected[0])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("sizes", [(B, 0, S), (B, T, 0), (0, T, S)], ids=["T", "S", "B"])
def test_empty_axes(need_weights, sizes):
    """Without keys the output is out_proj.bias, also where weights are asked for: no row is NaN."""
    oracle, module = pair()
    batch, length_q, length_kv = sizes
    query, key = np.ones((batch, length_q, E), np.float32), np.ones((batch, length_kv, E), np.float32)
    output, weights = run(oracle, query, key, key, need_weights=need_weights)
    got = module(query, key, key, need_weights=need_weights)
    assert got.output.shape == output.shape and close(got.output, output)
    if need_weights:
        assert got.weights.shape == tuple(weights.shape)
    if output.numel():
        assert close(output, oracle.out_proj.bias.detach().expand(output.shape))


ZEROS = {"int": torch.int64, "byte": torch.uint8, "bool": torch.bool}
REFUSED = {
    "integer attn_mask": ({"attn_mask": ((T, S), "int")}, TypeError, "`attn_mask` must be boolean"),
    "byte attn_mask": ({"attn_mask": ((T, S), "byte")}, TypeError, "`attn_mask` must be boolean"),
    "integer key_padding_mask": ({"key_padding_mask": ((B, S), "int")}, TypeError, "pass `key_padding_mask != 0`"),
    "four axes": ({"attn_mask": ((B, N, T, S), "bool")}, ValueError, r"`attn_mask` must be \[T, S\]"),
    "one an example": ({"attn_mask": ((B, T, S), "bool")}, ValueError, r"`attn_mask` must be \[T, S\]"),
    "one for all heads": ({"attn_mask": ((1, T, S), "bool")}, ValueError, r"`attn_mask` must be \[T, S\]"),
    "to broadcast": ({"attn_mask": ((1, S), "bool")}, ValueError, r"`attn_mask` must be \[T, S\]"),
    "transposed": ({"attn_mask": ((S, T), "bool")}, ValueError, r"`attn_mask` must be \[T, S\]"),
    "padding of queries": ({"key_padding_mask": ((B, T), "bool")}, ValueError, "`key_padding_mask` must be"),
    "padding without a batch": ({"key_padding_mask": ((S,), "bool")}, ValueError, "`key_padding_mask` must be"),
    "is_causal alone": ({"is_causal": True}, ValueError, "got attn_mask=None"),
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_both_refuse(name, need_weights):
    given, error, sentence = REFUSED[name]
    oracle, module = pair()
    options = {k: torch.zeros(v[0], dtype=ZEROS[v[1]]) if isinstance(v, tuple) else v for k, v in given.items()}
    with pytest.raises((RuntimeError, AssertionError)):
        run(oracle, QUERY, KEY, KEY, need_weights=need_weights, **options)
    with refuses(error, sentence):
        module(QUERY, KEY, KEY, need_weights=need_weights, **options)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ((QUERY, KEY, KEY[:, 1:]), r"`value` must have 7 row\(s\)"),
        ((QUERY, KEY[1:], KEY[1:]), "The batch axes of `query`, `key`, `value` must be equal"),
        ((QUERY, KEY[0], KEY[0]), "The batch axes of `query`, `key`, `value` must be equal"),
        ((QUERY[..., 1:], KEY, KEY), "`query` must be .* with last axis 22"),
        ((QUERY, KEY[..., 1:], KEY), "`key` must be .* with last axis 22"),
        ((QUERY[0, 0], KEY[0, 0], KEY[0, 0]), "`query` must be"),
    ],
    ids=["lengths", "batch", "ranks", "query features", "key features", "one axis"],
)
def test_inputs_that_both_refuse(inputs, sentence):
    oracle, module = pair()
    with pytest.raises((RuntimeError, AssertionError)):
        run(oracle, *inputs)
    with refuses(ValueError, sentence):
        module(*inputs)


def test_unbatched_masks():
    oracle, module = pair(add_bias_kv=True, add_zero_attn=True, bias=False, kdim=V)
    key = RNG.normal(size=(S, V)).astype(np.float32)
    blocked = torch.from_numpy(RNG.random((N, T, S)) < 0.4)
    padding = torch.from_numpy(RNG.normal(size=S).astype(np.float32))
    inputs = (QUERY[0], key, KEY[0])
    options = {"attn_mask": blocked, "key_padding_mask": padding, "average_attn_weights": False}
    output, weights = run(oracle, *inputs, **options)
    got = module(*inputs, **options)
    assert weights.shape == (N, T, S + 2) and module.in_proj_bias is None and module.bias_k.shape == (1, 1, E)
    assert close(got.output, output) and close(got.weights, weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_training_with_given_masks_is_torchs(need_weights):
    """The output, and the weights after dropout, rows that sum to more or less than 1."""
    oracle, module = pair(dropout=0.2, add_zero_attn=True)
    keep = drawn_masks(RNG, {"": (B, N, T, S + 1)})
    options = {"need_weights": need_weights, "attn_mask": torch.from_numpy(RNG.random((B * N, T, S)) < 0.3)}
    with keeping(oracle, keep):
        expected = run(oracle, QUERY, KEY, KEY, **options)
    got = module(QUERY, KEY, KEY, **options, deterministic=False, dropout_mask=torch.from_numpy(keep[""]))
    assert close(got.output, expected[0])
    if need_weights:
        assert close(got.weights, expected[1]) and not close(np.sum(got.weights, axis=-1), np.ones((B, T)))
