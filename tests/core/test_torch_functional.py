"""scaled_dot_product_attention has torch.nn.functional's contract."""

import inspect
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import jaxattn
from jaxattn import scaled_dot_product_attention

from ..errors import refuses
from ..inputs import B, G, H, K, S, T, V, generator
from ..tolerances import close

RNG = generator("torch_functional")
N = 2


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


QUERY, KEY, VALUE = normal(B, N, T, H), normal(B, N, S, H), normal(B, N, S, V)
KEEP = RNG.random((B, 1, T, S)) < 0.6
KEEP[1, :, 2] = False
GROUPS = (normal(B, K * G, T, H), normal(B, K, S, H))
AGREE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((QUERY, KEY, VALUE), {}),
    "keep mask with an empty row": ((QUERY, KEY, VALUE, KEEP), {}),
    "float mask": ((QUERY, KEY, VALUE), {"attn_mask": normal(T, S), "scale": 0.3}),
    "causal, more keys": ((QUERY, KEY, VALUE), {"is_causal": True}),
    "causal, more queries": ((KEY, QUERY, QUERY), {"is_causal": True}),
    "no heads": ((QUERY[0, 0], KEY[0, 0], VALUE[0, 0], KEEP[0, 0]), {}),
    "no batch": ((QUERY[0], KEY[0], VALUE[0], KEEP[0]), {}),
    "one key head for all": ((QUERY, KEY[:1, :1], VALUE[:, :1]), {}),
    "grouped": ((*GROUPS, VALUE), {"enable_gqa": True}),
    "grouped unlike": ((*GROUPS, VALUE[:, :1]), {"enable_gqa": True}),
    "no keys": ((QUERY, KEY[:, :, :0], VALUE[:, :, :0]), {}),
    "no queries": ((QUERY[:, :, :0], KEY, VALUE), {}),
    "no examples": ((QUERY[:0], KEY[:0], VALUE[:0]), {}),
}


def tensors(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", AGREE)
def test_it_computes_what_torch_does(name):
    arrays, options = AGREE[name]
    arguments = [tensors(array) for array in arrays]
    named = {key: tensors(value) for key, value in options.items()}
    expected = F.scaled_dot_product_attention(*arguments, **named)
    got = scaled_dot_product_attention(*arrays, **options)
    assert got.dtype == np.float32 and close(got, expected)
    assert close(scaled_dot_product_attention(*arguments, **named), expected)  # torch's tensors, as they are


def test_an_empty_row_is_zero():
    output = scaled_dot_product_attention(QUERY, KEY, VALUE, KEEP)
    assert not np.asarray(output[1, :, 2]).any() and np.asarray(output[0]).all()


def test_arguments_and_defaults_are_torchs():
    """torch's own is a builtin; its documentation says scaled_dot_product_attention(query, key, value, …)."""
    ours = inspect.signature(scaled_dot_product_attention).parameters
    text = (F.scaled_dot_product_attention.__doc__ or "").split("->")[0]
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(ours)[: len(names)] == names and all(name in text for name in names)
    assert [ours[name].default for name in names[3:]] == [None, 0.0, False, None, False]


def test_dropout_by_mask_and_by_key():
    keep = RNG.random((B, N, T, S)) < 0.7
    got = scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=0.25, dropout_mask=torch.from_numpy(keep))
    weights = torch.softmax(tensors(QUERY) @ tensors(KEY).transpose(-2, -1) / H**0.5, -1) * tensors(keep) / 0.75
    assert close(got, weights @ tensors(VALUE))
    drawn = [
        scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=0.5, dropout_rng=jax.random.key(i)) for i in (1, 2)
    ]
    assert not close(*drawn)


def test_jit_grad_and_vmap():
    def loss(query, key, value):
        return (scaled_dot_product_attention(query, key, value, KEEP[0]) ** 2).sum()

    arrays = (QUERY[0], KEY[0], VALUE[0])
    leaves = [tensors(array).requires_grad_() for array in arrays]
    (F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], tensors(KEEP[0])) ** 2).sum().backward()
    for ours, theirs in zip(jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays), leaves, strict=True):
        assert close(ours, theirs.grad)
    mapped = jax.vmap(scaled_dot_product_attention)(QUERY, KEY, VALUE)
    assert close(mapped, F.scaled_dot_product_attention(tensors(QUERY), tensors(KEY), tensors(VALUE)))


BAD: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "mask and is_causal": (ValueError, "combine them", (QUERY, KEY, VALUE, KEEP), {"is_causal": True}),
    "integer mask": (TypeError, "`mask` must be boolean", (QUERY, KEY, VALUE, KEEP.astype(int)), {}),
    "heads": (ValueError, "pass enable_gqa=True", (*GROUPS, VALUE), {}),
    "groups": (ValueError, "must be a multiple", (normal(B, 3, T, H), KEY, VALUE), {"enable_gqa": True}),
    "groups without heads": (ValueError, "heads, length", (QUERY[0, 0], KEY[0, 0], VALUE[0, 0]), {"enable_gqa": True}),
    "lengths": (ValueError, "same length", (QUERY, KEY, VALUE[:, :, 1:]), {}),
    "widths": (ValueError, "same head width", (QUERY, KEY[..., 1:], VALUE), {}),
    "one axis": (ValueError, r"`query` must be \[\*B, length, width\]", (QUERY[0, 0, 0], KEY, VALUE), {}),
    "integers": (TypeError, "`query` must be a floating-point", (QUERY.astype(int), KEY, VALUE), {}),
    "dropout alone": (ValueError, "needs `dropout_rng` or `dropout_mask`", (QUERY, KEY, VALUE), {"dropout_p": 0.1}),
    "rate": (ValueError, r"rate in \[0, 1\)", (QUERY, KEY, VALUE), {"dropout_p": 1.5}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    error, sentence, arrays, options = BAD[name]
    with refuses(error, sentence):
        scaled_dot_product_attention(*arrays, **options)


def test_it_is_seen_by_capture_as_the_operation_is():
    from flax import nnx

    class Model(nnx.Module):
        def __call__(self, query, key, value):
            return scaled_dot_product_attention(query, key, value)

    _, seen = jaxattn.capture(Model(), QUERY, KEY, VALUE)
    assert seen[":weights"].shape == (B, N, T, S)
