"""torch.nn is its own oracle only off its fast path, which gives other answers."""

import ast
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchref
from torchref.core.dot_product import dot_product_attention
from torchref.core.plain_path import plain_path

B, L, D, N = 3, 5, 24, 2


def encoder(**options) -> nn.Module:
    layer = torchref.TransformerEncoderLayer(
        D, N, dim_feedforward=29, batch_first=True, dropout=0.0, dtype=torch.float64, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torchref.TransformerEncoder(layer, 2).eval()


def padding() -> Tensor:
    """torch's polarity: True = padded. No example uses the whole length."""
    return torch.arange(L) >= torch.tensor([2, 4, 3])[:, None]


def test_the_exports_are_torchs_own_classes() -> None:
    assert torchref.MultiheadAttention is nn.MultiheadAttention
    assert torchref.TransformerEncoderLayer is nn.TransformerEncoderLayer
    assert torchref.TransformerEncoder is nn.TransformerEncoder


@pytest.mark.parametrize("before", [True, False])
def test_the_setting_is_restored(before: bool) -> None:
    found = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(before)
        with pytest.raises(RuntimeError, match="inside"), plain_path():
            assert not torch.backends.mha.get_fastpath_enabled()
            raise RuntimeError("inside")
        assert torch.backends.mha.get_fastpath_enabled() is before
    finally:
        torch.backends.mha.set_fastpath_enabled(found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_eval_without_gradients_equals_training_mode_only_on_the_plain_path() -> None:
    module, x = encoder(), torch.randn(B, L, D, dtype=torch.float64)
    trained = module.train()(x, src_key_padding_mask=padding()).detach()
    module.eval()
    with torch.no_grad():
        fast = module(x, src_key_padding_mask=padding())
        with plain_path():
            plain = module(x, src_key_padding_mask=padding())
    torch.testing.assert_close(plain, trained, rtol=0, atol=1e-12)
    assert fast[padding()].abs().max() == 0.0
    assert plain[padding()].abs().min() > 0.0


def test_a_float_mask_is_added_on_the_plain_path() -> None:
    module = torchref.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64).eval()
    x, bias = torch.randn(B, L, D, dtype=torch.float64), torch.randn(L, L, dtype=torch.float64)
    with torch.no_grad(), plain_path():
        weights = module(x, x, x, attn_mask=bias, average_attn_weights=False)[1]
        q, k, _ = (x @ module.in_proj_weight.T + module.in_proj_bias).unflatten(-1, (3, N, D // N)).unbind(-3)
    expected = dot_product_attention(q, k, k, bias=bias)[1]
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


def test_bias_false_runs_without_gradients() -> None:
    module = encoder(bias=False)
    assert not [name for name in module.state_dict() if name.endswith("bias")]
    with torch.no_grad(), plain_path():
        assert module(torch.randn(B, L, D, dtype=torch.float64)).isfinite().all()


def test_the_oracle_is_independent_of_what_it_judges() -> None:
    names = set()
    for path in Path(torchref.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").split(".")[0])
    assert names <= {"torch", "math", "collections", "contextlib"}
