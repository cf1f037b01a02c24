"""Shared and frozen parameters, and weights back into PyTorch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn import ConversionError
from jaxattn.convert import port_report
from jaxattn.convert.apply import parameters_of
from jaxattn.layers import FrozenParam, Sequential

from ..inputs import randomise

C, V = 5, 7


def gradient_of(parameter: torch.Tensor) -> np.ndarray:
    assert parameter.grad is not None
    return parameter.grad.numpy()


def repeated() -> nn.Module:
    """One linear layer at three places, one of them inside another Sequential, which itself is repeated."""
    layer = nn.Linear(C, C)
    block = nn.Sequential(layer, nn.Tanh())
    return randomise(nn.Sequential(layer, block, block), "repeated")


def tied() -> Any:
    model = nn.Sequential(nn.Embedding(V, C), nn.RMSNorm(C), nn.Linear(C, V, bias=False))
    model[2].weight = model[0].weight
    return randomise(model, "tied")


def test_a_module_repeated_in_one_sequential_is_stored_once():
    layer = nn.Linear(C, C)
    model = randomise(nn.Sequential(layer, nn.Tanh(), layer), "repeated")
    twin = jaxattn.from_torch(model)
    assert len(twin.layers) == 2 and twin.order == (0, 1, 0)
    x = np.linspace(-1, 1, 3 * C, dtype=np.float32).reshape(3, C)
    jaxattn.parity.compare(model, twin, x).assert_ok()
    gradient = jax.jit(jax.grad(lambda m: jnp.sum(m(x))))(twin)
    model(torch.from_numpy(x)).sum().backward()
    ours = jaxattn.state_dict(gradient, like=twin)
    assert np.allclose(ours["0.weight"], gradient_of(layer.weight), atol=1e-6)
    assert ours.keys() == model.state_dict().keys() and ours["2.weight"] is ours["0.weight"]


def test_a_module_shared_across_containers_is_refused():
    with pytest.raises(ConversionError, match=r"`0\.weight` and `1\.0\.weight` are one tensor in PyTorch"):
        jaxattn.from_torch(repeated())


def test_an_embedding_tied_to_the_last_layer_is_read_by_attend():
    model = tied()
    twin = jaxattn.from_torch(model)
    assert set(parameters_of(twin)) == {"layers.0.embedding", "layers.1.scale"}
    jaxattn.parity.compare(model, twin, np.array([[0, 3, 6], [1, 1, 2]])).assert_ok()
    report = port_report(twin)
    assert report is not None and report.shared == {"2.weight": "0.weight"} and "2" not in report.twins


def test_loading_takes_either_name_and_refuses_two_that_differ():
    model, twin = tied(), jaxattn.from_torch(tied())
    weights = {name: np.array(value) for name, value in jaxattn.state_dict(twin).items()}
    for absent in ("0.weight", "2.weight"):
        fresh = {name: value + 1 for name, value in weights.items() if name != absent}
        jaxattn.load_state_dict(twin, fresh)
        assert np.array_equal(jaxattn.state_dict(twin)[absent], weights["0.weight"] + 1)
    with pytest.raises(ConversionError, match=r"`0\.weight` and `2\.weight` are one tensor .* differ here"):
        jaxattn.load_state_dict(twin, {**weights, "2.weight": weights["2.weight"] + 1})
    with pytest.raises(ConversionError, match=r"missing `0\.weight`"):
        jaxattn.load_state_dict(twin, {"1.weight": weights["1.weight"]})
    jaxattn.load_state_dict(twin, model.state_dict())


def test_frozen_parameters_stay_marked_and_out_of_the_way():
    model = randomise(nn.Sequential(nn.Linear(C, V), nn.Tanh(), nn.Linear(V, 3)), "frozen")
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    twin = jaxattn.from_torch(model)
    report = port_report(twin)
    assert report is not None and sorted(report.frozen) == ["0.bias", "0.weight", "2.bias"]
    trained = nnx.state(twin, nnx.Param)
    assert [path for path, _ in nnx.to_flat_state(trained)] == [("layers", 2, "kernel")]
    assert isinstance(twin.layers[0].kernel, FrozenParam)
    x = np.linspace(-1, 1, 2 * C, dtype=np.float32).reshape(2, C)
    loss, gradient = nnx.value_and_grad(lambda m: jnp.sum(m(x)), argnums=nnx.DiffState(0, nnx.Param))(twin)
    assert loss.shape == () and set(jaxattn.state_dict(gradient, like=twin)) == {"2.weight"}
    jaxattn.parity.compare(model, twin, x).assert_ok()
    weights = jaxattn.state_dict(twin)
    assert all(np.array_equal(weights[name], value.numpy()) for name, value in model.state_dict().items())
    jaxattn.load_state_dict(twin, {name: value + 1 for name, value in weights.items()})
    assert np.array_equal(jaxattn.state_dict(twin)["0.weight"], weights["0.weight"] + 1)


def odd_bits(model: nn.Module) -> nn.Module:
    """NaN with a payload, −0.0 and a subnormal in every parameter."""
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        bits = {2: torch.int16, 4: torch.int32}[flat.element_size()]
        flat.view(bits)[:3] = torch.tensor([-(2 ** (8 * flat.element_size() - 1)), -3, 1]).to(bits)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_go_back_bit_for_bit(dtype):
    source = odd_bits(nn.DataParallel(tied()).to(dtype))
    inner = tied().to(dtype)
    target, embedding = torch.compile(inner), inner[0].weight
    report = jaxattn.to_torch(jaxattn.from_torch(source), target)
    assert report.loaded == 3 and inner[0].weight is embedding is inner[2].weight
    for theirs, ours in zip(source.parameters(), inner.parameters(), strict=True):
        bits = torch.int16 if dtype != torch.float32 else torch.int32
        assert torch.equal(theirs.data.view(bits), ours.data.view(bits))


def test_weights_that_do_not_fit_leave_the_torch_module_as_it_was():
    twin = jaxattn.from_torch(nn.Sequential(nn.Linear(C, V), nn.LayerNorm(V)))
    for target, sentence in (
        (nn.Sequential(nn.Linear(C, V), nn.LayerNorm(V, bias=False)), "`1.bias` is in Flax only"),
        (nn.Sequential(nn.Linear(C, V), nn.LayerNorm(V), nn.PReLU()), "`2.weight` is in PyTorch only"),
        (nn.Sequential(nn.Linear(C, C), nn.LayerNorm(V)), r"`0.weight` is \(7, 5\) in Flax, \(5, 5\) in PyTorch"),
        (nn.Sequential(nn.Linear(C, V), nn.LayerNorm(V)).half(), "`0.bias` is float32 in Flax, float16 in PyTorch"),
    ):
        before = {name: value.clone() for name, value in target.state_dict().items()}
        with pytest.raises(ConversionError, match=sentence):
            jaxattn.to_torch(twin, target)
        assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_packed_projections_are_blocks_of_query_key_and_value():
    """Rows of in_proj are counted through; each head's slice must be found again in the recorded projections."""
    module = nn.MultiheadAttention(6, 3, bias=False, batch_first=True)
    module.in_proj_weight.data = torch.arange(18.0)[:, None].expand(18, 6).clone()
    _, seen = jaxattn.capture(jaxattn.from_torch(module), *[np.full((1, 1, 6), 1 / 6, np.float32)] * 3)
    rows = np.concatenate([np.asarray(seen[f":{name}"]).reshape(-1) for name in "qkv"])
    scale = rows[1] / 1.0  # a projection may carry the logits' scale
    assert np.allclose(rows[:6], np.arange(6) * scale) and np.allclose(rows[6:], np.arange(6, 18), atol=1e-5)


def test_other_widths_of_key_and_value_have_weights_of_their_own():
    module = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
    weights = jaxattn.state_dict(jaxattn.from_torch(module))
    shapes = {name: value.shape for name, value in weights.items() if "_proj_weight" in name}
    assert shapes == {"q_proj_weight": (4, 4), "k_proj_weight": (4, 3), "v_proj_weight": (4, 5)}
    assert all(np.array_equal(weights[name], value.numpy()) for name, value in module.state_dict().items())


def test_layers_that_started_as_copies_are_independent():
    stack: Any = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 7), 2, enable_nested_tensor=False).eval()
    assert torch.equal(stack.layers[0].linear1.weight, stack.layers[1].linear1.weight)
    twin = jaxattn.from_torch(stack)
    twin.layers[0].linear1.bias[...] = jnp.ones(7)
    assert not np.any(np.asarray(twin.layers[1].linear1.bias[...]) == 1) and "norm.weight" not in stack.state_dict()


def test_dropout_of_a_sequential_goes_by_path():
    model: Any = nn.Sequential(nn.Linear(C, V), nn.Dropout(0.4), nn.Sequential(nn.Dropout(0.2), nn.Linear(V, 3)))
    with pytest.warns(UserWarning, match="training mode with dropout"):
        twin = jaxattn.from_torch(model)
    assert isinstance(twin, Sequential)
    x = np.linspace(-1, 1, 2 * C, dtype=np.float32).reshape(2, C)
    masks = {"1": np.arange(2 * V).reshape(2, V) % 2 == 0, "2.0": np.arange(2 * V).reshape(2, V) % 3 == 0}
    hidden = model[0](torch.from_numpy(x)) * torch.from_numpy(masks["1"]) / 0.6
    expected = model[2][1](hidden * torch.from_numpy(masks["2.0"]) / 0.8)
    ours = twin(x, deterministic=False, dropout_masks=masks)
    assert np.allclose(ours, expected.detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="needs `rngs=nnx.Rngs"):
        twin(x, deterministic=False)
    with pytest.raises(ValueError, match="must be for 0, 1, 2"):
        twin(x, deterministic=False, dropout_masks={"5": masks["1"]})
    _, seen = jaxattn.capture(twin, x)
    assert {"layers.0:output", "layers.2.layers.1:output"} <= set(seen)
