"""A wrong twin is caught, at the row that says what is wrong."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
import torchref
from jaxattn.convert.rules import IDENTITY, TRANSPOSE, Rule
from jaxattn.core.activations import Activation, gelu_exact, gelu_tanh
from jaxattn.layers import linear
from jaxattn.parity import ParityReport, compare

B, T, D = 3, 5, 22


def twin_of(module: nn.Module, **options: Any) -> Any:
    return jaxattn.from_torch(module, **options)


def failed(report: ParityReport) -> list[str]:
    with pytest.raises(AssertionError, match="FAILED"):
        report.assert_ok()
    return [row.what for row in report.failed]


def problems(report: ParityReport, what: str) -> str:
    return "; ".join(report.row(what).problems)


def test_wrong_epsilon(randomised, draw) -> None:
    module = randomised(nn.LayerNorm(D))
    twin = twin_of(module)
    twin.epsilon = 1e-6
    report = compare(module, twin, draw(B, T, D))
    assert report.rows[0].ok
    assert "output" in failed(report)
    assert "float64: " in problems(report, "output") and "float32: " in problems(report, "output")


class FeedForward(nnx.Module):
    """The twin of nn.Sequential(nn.Linear, nn.GELU, nn.Linear)."""

    def __init__(self, activation: Activation, rngs: nnx.Rngs):
        self.layers = nnx.List([linear(D, 29, rngs=rngs), activation, linear(29, 7, rngs=rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def torch_rules(self):
        return [
            Rule((f"{i}.{source}",), f"layers.{i}.{target}", transform)
            for i in (0, 2)
            for source, target, transform in (("weight", "kernel", TRANSPOSE), ("bias", "bias", IDENTITY))
        ]


@pytest.mark.parametrize(("activation", "right"), [(gelu_exact, True), (gelu_tanh, False)])
def test_tanh_for_exact_gelu(activation: Activation, right: bool, randomised, draw) -> None:
    module = randomised(nn.Sequential(nn.Linear(D, 29), nn.GELU(), nn.Linear(29, 7)))
    twin = FeedForward(activation, nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    report = compare(module, twin, draw(B, D))
    if right:
        return report.assert_ok()
    assert report.rows[0].ok
    assert set(failed(report)) == {row.what for row in report.rows[1:]} - {"gradient of 2.bias"}
    output = report.row("output")
    assert output.error is not None and output.allowed is not None and output.error > 30 * output.allowed


def test_transposed_square_weight(randomised, draw) -> None:
    module = randomised(nn.Linear(7, 7))
    twin = twin_of(module)
    twin.kernel[...] = twin.kernel[...].T
    report = compare(module, twin, draw(B, 7))
    assert not report.rows[0].ok
    assert "`weight` is equal transposed" in report.rows[0].verdict
    assert "`bias`" not in report.rows[0].verdict
    assert {"output", "gradient of input"} < set(failed(report))
    assert report.row("gradient of weight").ok


def test_one_ulp_in_one_bias_element(randomised, draw) -> None:
    module = randomised(nn.Linear(7, 13))
    twin = twin_of(module)
    bias = np.array(twin.bias[...])
    bias[4] = np.nextafter(bias[4], np.float32(9))
    twin.bias[...] = jnp.asarray(bias)
    report = compare(module, twin, draw(B, 7))
    assert "`bias` differs in 1 of 13 elements" in report.rows[0].verdict
    assert "`weight`" not in report.rows[0].verdict
    assert failed(report) == ["state dict, bit for bit", "output"]
    assert "float64: " in problems(report, "output") and "float32" not in problems(report, "output")


class WrongScale(jaxattn.ScaledDotProductSelfAttention):
    """Scales by 1/√(D − 1)."""

    def __call__(self, x, mask=None):
        x = jnp.asarray(x)
        factor = (self.embed_dim / (self.embed_dim - 1)) ** 0.5
        q = self.W_q(x) * factor
        logits = jnp.einsum("btd,bsd->bts", q, self.W_k(x)) * self.embed_dim**-0.5
        weights = jax.nn.softmax(logits)
        return jaxattn.AttentionOutput(weights @ self.W_v(x), weights)


class InvertedMask(jaxattn.ScaledDotProductSelfAttention):
    def __call__(self, x, mask=None):
        return super().__call__(x, None if mask is None else jnp.asarray(mask) == 0)


@pytest.mark.parametrize("wrong", [WrongScale, InvertedMask])
def test_wrong_scale_and_inverted_mask(wrong: type, randomised, draw) -> None:
    module = randomised(torchref.ScaledDotProductSelfAttention(D))
    twin = wrong(D, rngs=nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    keep = np.tri(T, dtype=bool) if wrong is InvertedMask else None
    report = compare(module, twin, draw(B, T, D), keep)
    assert report.rows[0].ok
    assert {"output", "weights"} <= set(failed(report))
    assert "float32" in problems(report, "weights")


class Blind(nnx.Linear):
    """Right values, no gradient for the bias."""

    def __call__(self, inputs, out_sharding=None):
        assert self.bias is not None
        return inputs @ self.kernel[...] + jax.lax.stop_gradient(self.bias[...])

    def torch_rules(self):
        return [Rule(("weight",), "kernel", TRANSPOSE)]


class Nameless(nnx.Module):
    """A class without rules, so its kernel keeps Flax's name."""

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(rngs.normal((in_features, out_features)))
        self.bias = nnx.Param(rngs.normal((out_features,)))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return inputs @ self.kernel[...] + self.bias[...]


def test_a_gradient_alone(randomised, draw) -> None:
    module = randomised(nn.Linear(7, 13))
    twin = Blind(7, 13, rngs=nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    assert failed(compare(module, twin, draw(B, 7))) == ["gradient of bias"]


def test_names_on_one_side_only(randomised, draw) -> None:
    module, twin = randomised(nn.Linear(7, 13)), Nameless(7, 13, rngs=nnx.Rngs(0))
    report = compare(module, twin, draw(B, 7))
    assert report.rows[0].verdict.startswith("`weight` is in torch only; `kernel` is in Flax only; `bias` differs in")
    assert "gradient of bias" in [row.what for row in report.rows]


def test_rounding_alone(randomised, draw) -> None:
    """bfloat16 computation: the algorithm is right, so float64 passes and float32 fails."""
    module = randomised(nn.Linear(D, 7))
    report = compare(module, twin_of(module, dtype=jnp.bfloat16), draw(B, D))
    assert "output" in failed(report)
    assert problems(report, "output").startswith("float32: ")
    assert any("`output` is float32 in torch, bfloat16 in Flax" in note for note in report.notes)


def test_another_dtype_of_the_parameters(randomised, draw) -> None:
    module = randomised(nn.Linear(D, 7))
    twin = twin_of(randomised(nn.Linear(D, 7), torch.bfloat16))
    report = compare(module, twin, draw(B, D))
    assert "`weight` is float32 in torch, bfloat16 in Flax" in report.rows[0].verdict


def test_nan_on_one_side(randomised, draw) -> None:
    module = randomised(nn.Linear(7, 13))
    twin = twin_of(module)
    twin.bias[...] = twin.bias[...].at[2].set(jnp.nan)
    report = compare(module, twin, draw(B, 7))
    assert "Flax is NaN at 3 of 39 places where torch is not" in problems(report, "output")
    assert "`bias` differs in 1 of 13 elements" in report.rows[0].verdict
