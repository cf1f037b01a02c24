"""Training mode with planned dropout: the masks are where torch uses them, and both sides compute the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional

import jaxattn
from jaxattn.layers import Dropout
from jaxattn.parity import DropoutPlan, compare

from ..inputs import generator

B, T, S, N, D = 3, 5, 7, 2, 6
RATE = 0.25


def run(module: Any, *inputs: torch.Tensor, plan: DropoutPlan | None = None, **kwargs: Any) -> tuple[Any, dict]:
    with (plan or DropoutPlan(1)).on_torch(module) as masks:
        return module(*inputs, **kwargs), masks


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(generator("dropout plan").standard_normal(shape))


def attention(**options: Any) -> Any:
    return nn.MultiheadAttention(D, N, dropout=RATE, batch_first=True, **options).double()


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_multiplies_with_the_mask(inplace: bool) -> None:
    x = normal(40, 50)
    output, masks = run(nn.Dropout(RATE, inplace), x.clone())
    assert list(masks) == [""] and masks[""].shape == (40, 50) and masks[""].dtype == bool
    np.testing.assert_array_equal(output, x.numpy() * (masks[""] / 0.75))
    assert abs(masks[""].mean() - 0.75) < 0.04  # four standard deviations of 2000 draws


def test_rates_of_nothing_and_of_all() -> None:
    x = normal(B, T)
    output, masks = run(nn.Sequential(nn.Dropout(0.0), nn.Dropout(1.0)), x)
    assert list(masks) == ["1"] and not masks["1"].any() and not output.any()


@pytest.mark.parametrize("enable_gqa", [False, True])
@pytest.mark.parametrize("masked", ["no", "causal", "empty row", "float"])
def test_scaled_dot_product_attention_by_its_formula(masked: str, enable_gqa: bool) -> None:
    class Module(nn.Module):
        def forward(self, *inputs, **options):
            return functional.scaled_dot_product_attention(*inputs, dropout_p=RATE, enable_gqa=enable_gqa, **options)

    q, k, v = normal(B, 4, T, D), *(normal(2, B, 2 if enable_gqa else 4, S, D))
    options: dict[str, Any] = {}
    bias = torch.zeros(T, S, dtype=torch.float64)
    if masked == "causal":
        bias, options = bias.masked_fill(~torch.ones(T, S).tril().bool(), -torch.inf), {"is_causal": True}
    elif masked == "empty row":
        keep = torch.from_numpy(generator("rows").random((T, S)) < 0.5)
        keep[2] = False
        bias, options = bias.masked_fill(~keep, -torch.inf), {"attn_mask": keep}
    elif masked == "float":
        bias, options = normal(T, S), {"attn_mask": normal(T, S)}
    output, masks = run(Module(), q, k, v, scale=0.3, **options)
    k, v = (x.repeat_interleave(2, 1) if enable_gqa else x for x in (k, v))
    weights = (q @ k.mT * 0.3 + bias).softmax(-1).nan_to_num(0.0).numpy()
    np.testing.assert_allclose(output, (weights * masks[""] / 0.75) @ v.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("unbatched", [False, True])
def test_attention_has_its_weights_mask_by_head(unbatched: bool) -> None:
    """The same mask with and without weights, and where it belongs: torch's own weights are zero there."""
    module, x = attention(add_zero_attn=True), normal(*(() if unbatched else (B,)), T, D)
    (output, weights), masks = run(module, x, x, x, average_attn_weights=False)
    (plain, _), plain_masks = run(module, x, x, x, need_weights=False)
    assert masks[""].shape == weights.shape == (*(() if unbatched else (B,)), N, T, T + 1)
    np.testing.assert_array_equal(weights.detach() != 0, masks[""])
    np.testing.assert_array_equal(masks[""], plain_masks[""])
    np.testing.assert_allclose(output.detach(), plain.detach(), rtol=0, atol=1e-14)


def test_sites_of_an_encoder_are_torchs_paths() -> None:
    layer = nn.TransformerEncoderLayer(D, N, 11, dropout=RATE)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    _, masks = run(module, normal(T, B, D))
    names = ("self_attn", "dropout1", "dropout", "dropout2")
    assert list(masks) == [f"layers.{layer}.{name}" for layer in range(2) for name in names]
    shapes = [masks[f"layers.1.{name}"].shape for name in names]
    assert shapes == [(B, N, T, T), (T, B, D), (T, B, 11), (T, B, D)]


def test_masks_depend_on_seed_step_and_site_only() -> None:
    module, x = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), normal(B, T, D)
    plans = [DropoutPlan(1), DropoutPlan(1), DropoutPlan(2), DropoutPlan(1, step=1)]
    first, again, other, later = (run(module, x, plan=plan)[1] for plan in plans)
    assert all(np.array_equal(first[name], again[name]) for name in "01")
    assert not np.array_equal(first["0"], first["1"])
    assert not np.array_equal(first["0"], other["0"]) and not np.array_equal(first["0"], later["0"])


def test_torch_is_left_as_it_was_even_after_an_error() -> None:
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    module = nn.Sequential(nn.Dropout(0.5), Failing().eval()).eval()
    module[0].train()
    before = functional.dropout, functional.scaled_dot_product_attention, torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no"):
        run(module, normal(B))
    assert (functional.dropout, functional.scaled_dot_product_attention) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert [part.training for part in module.modules()] == [False, True, False]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_site_that_drops_twice_is_refused() -> None:
    shared = nn.Dropout(0.5)
    with pytest.raises(NotImplementedError, match="run once a call, got `0` again"):
        run(nn.Sequential(shared, nn.Linear(D, D).double(), shared), normal(B, D))


def inverted(self, *args, dropout_mask, **kwargs):
    return jaxattn.MultiheadAttention.__call__(self, *args, dropout_mask=~jnp.asarray(dropout_mask), **kwargs)


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_in_training_mode(need_weights: bool, randomised) -> None:
    module = randomised(nn.MultiheadAttention(D, N, dropout=RATE, add_bias_kv=need_weights), torch.float64)
    with jax.enable_x64(True):
        twin = jaxattn.from_torch(module)
        inputs = [array.numpy() for array in (normal(T, B, D), *normal(2, S, B, D))]
        options: Any = {"need_weights": need_weights, "dropout": DropoutPlan(1)}
        report = compare(module, twin, *inputs, **options)
        report.assert_ok()
        assert report.conditions["torch_training"] is True and report.conditions["dropout_seed"] == 1
        assert not module.training
        if need_weights:
            twin.__class__ = type("Inverted", (type(twin),), {"__call__": inverted})
            wrong = compare(module, twin, *inputs, **options)
            assert not wrong.row("output").ok and not wrong.row("weights").ok


def test_an_encoder_layer_in_training_mode(randomised) -> None:
    module = randomised(nn.TransformerEncoderLayer(D, N, 11, dropout=RATE), torch.float64)
    with jax.enable_x64(True):
        twin = jaxattn.from_torch(module)
        compare(module, twin, normal(T, B, D).numpy(), dropout=DropoutPlan(1)).assert_ok()


def test_dropout_layer_in_training_mode() -> None:
    compare(nn.Dropout(0.4), Dropout(0.4), np.float32(normal(B, T)), dropout=DropoutPlan(1)).assert_ok()
    wrong = compare(nn.Dropout(0.4), Dropout(0.5), np.float32(normal(B, T)), dropout=DropoutPlan(1))
    assert not wrong.row("output").ok


def test_dropout_inside_a_sequence(randomised) -> None:
    module = randomised(nn.Sequential(nn.Linear(D, 5), nn.Sequential(nn.Tanh(), nn.Dropout(0.4)), nn.Linear(5, D)))
    compare(module, jaxattn.from_torch(module), np.float32(normal(B, D)), dropout=DropoutPlan(1)).assert_ok()


def test_a_flax_module_without_masks_is_refused() -> None:
    class Plain(nnx.Module):
        def __call__(self, x):
            return x

    module = nn.Sequential(nn.Dropout(0.5))
    with pytest.raises(
        TypeError, match=r"Plain must take `deterministic` and `dropout_masks` .* torch at `0`"
    ) as error:
        compare(module, Plain(), np.ones((B, D), np.float32), dropout=DropoutPlan())
    assert "dropping = jaxattn.layers.Dropping(deterministic, rngs, dropout_masks)" in str(error.value)


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: functional.alpha_dropout(x, 0.5, True)])
def test_randomness_that_no_plan_covers_is_refused(draw) -> None:
    class Noisy(nn.Module):
        def forward(self, x):
            return x + draw(x)

    with pytest.raises(ValueError, match="A dropout plan covers .* got random numbers from aten"):
        compare(Noisy(), Dropout(0.5), np.ones((B, D), np.float32), dropout=DropoutPlan())
