"""Where torch.nn departs from its own plain path, each row of MultiheadAttention's table: as torch does, as we do."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from torchref.core.plain_path import plain_path

from ..errors import refuses
from ..inputs import B, H, T, generator, randomise
from ..tolerances import close

N, E = 2, 2 * H
RNG = generator("departures")
X = RNG.normal(size=(B, T, E)).astype(np.float32)
TENSOR = torch.from_numpy(X)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(T)
#: The second example is all padding.
PADDING = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


@contextmanager
def fast_path():
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(True)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def attention(**options) -> nn.MultiheadAttention:
    return randomise(nn.MultiheadAttention(E, N, batch_first=True, **options), "departures")


def encoder_layer(**options) -> nn.TransformerEncoderLayer:
    return randomise(nn.TransformerEncoderLayer(E, N, T, batch_first=True, **options), "departures")


def fast_and_plain(module: nn.Module, *inputs, **options) -> tuple[np.ndarray, np.ndarray]:
    def output():
        result = module(*inputs, **options)
        return (result[0] if isinstance(result, tuple) else result).numpy()

    with fast_path():
        fast = output()
        with plain_path():
            return fast, output()


def test_is_causal_drops_another_mask():
    """Torch computes causal attention whatever the mask holds; here the promise is checked."""
    oracle = attention()
    other = torch.zeros(T, T, dtype=torch.bool)
    options = {"need_weights": False, "attn_mask": other, "is_causal": True}
    with torch.no_grad(), plain_path():
        dropped = oracle(TENSOR, TENSOR, TENSOR, **options)[0]
        causal = oracle(TENSOR, TENSOR, TENSOR, attn_mask=CAUSAL, need_weights=False)[0]
        honoured = oracle(TENSOR, TENSOR, TENSOR, attn_mask=other, is_causal=True)[0]
    assert torch.equal(dropped, causal) and not close(dropped, honoured)
    with refuses(ValueError, "promises that `attn_mask` is the causal mask"):
        jaxattn.from_torch(oracle)(X, X, X, **options)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_is_causal_hides_the_columns_that_are_appended(options):
    oracle = attention(**options)
    promise = {"attn_mask": CAUSAL, "is_causal": True}
    with torch.no_grad(), plain_path():
        hidden = oracle(TENSOR, TENSOR, TENSOR, need_weights=False, **promise)[0]
        visible = oracle(TENSOR, TENSOR, TENSOR, need_weights=True, **promise)[0]
    assert not close(hidden, visible)
    module = jaxattn.from_torch(oracle)
    for need_weights in (True, False):
        assert close(module(X, X, X, need_weights=need_weights, **promise).output, visible)


def test_the_fast_path_gives_nan_without_weights():
    oracle = attention()
    fast, plain = fast_and_plain(oracle, TENSOR, TENSOR, TENSOR, key_padding_mask=PADDING, need_weights=False)
    assert np.isnan(fast[1]).all() and np.isfinite(plain).all()
    assert close(jaxattn.from_torch(oracle)(X, X, X, PADDING, need_weights=False).output, plain)


def test_the_fast_path_reads_a_float_mask_as_boolean():
    oracle = encoder_layer()
    bias = np.where(RNG.random((T, T)) < 0.5, 0.5, 0.0).astype(np.float32)
    bias[:, 0] = 0
    fast, plain = fast_and_plain(oracle, TENSOR, torch.from_numpy(bias))
    as_boolean, _ = fast_and_plain(oracle, TENSOR, torch.from_numpy(bias != 0))
    assert close(fast, as_boolean) and not close(fast, plain)
    assert close(jaxattn.from_torch(oracle)(X, bias), plain)


def test_the_fast_path_computes_the_exact_gelu_for_tanh():
    """The two differ by up to 4.7e-4; large biases bring the inputs to where they do."""
    activation: Any = nn.GELU("tanh")
    oracle = encoder_layer(activation=activation)
    with torch.no_grad():
        oracle.linear1.bias.add_(-2.2)
    fast, plain = fast_and_plain(oracle, TENSOR)
    activation.approximate = "none"
    assert close(fast, fast_and_plain(oracle, TENSOR)[1]) and not close(fast, plain)
    activation.approximate = "tanh"
    assert close(jaxattn.from_torch(oracle)(X), plain)


def test_the_fast_path_of_a_stack_gives_padded_positions_as_zero():
    """And fails where an example is all padding, so here each one has something."""
    oracle = nn.TransformerEncoder(encoder_layer(), 1)
    padding = PADDING.clone()
    padding[1, 0] = False
    fast, plain = fast_and_plain(oracle.eval(), TENSOR, src_key_padding_mask=padding)
    assert not fast[padding].any() and plain[padding].all() and close(fast[~padding], plain[~padding])
    assert close(jaxattn.from_torch(oracle)(X, src_key_padding_mask=padding), plain)


def test_a_floating_mask_that_a_stack_detects_as_causal_has_no_gradient():
    """It is dropped for the kernel's own; here a mask is applied as it is, with its gradient."""
    oracle = nn.TransformerDecoder(nn.TransformerDecoderLayer(E, N, T, batch_first=True), 1).eval()
    mask = CAUSAL.clone().requires_grad_()
    with plain_path():
        detected = oracle(TENSOR, TENSOR, tgt_mask=mask)
        told = oracle(TENSOR, TENSOR, tgt_mask=mask, tgt_is_causal=False)
    assert close(detected.detach(), told.detach())
    assert torch.autograd.grad(detected[0, 0].sum(), mask, allow_unused=True)[0] is None
    assert torch.autograd.grad(told[:, :, 0].sum(), mask)[0].abs().sum() > 0
