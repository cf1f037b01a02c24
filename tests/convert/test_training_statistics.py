"""Batch norm: statistics that calls gather, in both modes, and back into PyTorch."""

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
from jaxattn._tensors import to_numpy
from jaxattn.layers import BatchNorm
from jaxattn.parity import DropoutPlan

from ..inputs import generator, randomise

B, C, L = 5, 3, 7
KINDS = {
    "momentum": lambda: nn.BatchNorm1d(C, 0.1, momentum=0.3),
    "average": lambda: nn.BatchNorm1d(C, momentum=None),
    "plain": lambda: nn.BatchNorm1d(C, affine=False),
    "untracked": lambda: nn.BatchNorm1d(C, track_running_stats=False),
}


def model() -> Any:
    """With statistics that are no zeros and ones, in evaluation mode."""
    made: Any = randomise(
        nn.Sequential(
            nn.Conv1d(2, C, 3), nn.BatchNorm1d(C), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(C * L, 2)
        ),
        "batch norm",
    )
    with torch.no_grad():
        made[1].running_mean.copy_(torch.tensor([0.5, -1.0, 2.0]))
        made[1].running_var.copy_(torch.tensor([0.5, 1.5, 3.0]))
        made[1].num_batches_tracked.fill_(7)
    return made


def inputs(step: int = 0, *shape: int) -> np.ndarray:
    return generator(f"batch {step}").standard_normal(shape or (B, 2, L + 2)).astype(np.float32) * 2 + 1


def statistics(module) -> dict[str, np.ndarray]:
    return {name: to_numpy(value) for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", KINDS)
def test_three_batches_in_training_mode_then_one_in_evaluation(name):
    module = KINDS[name]().train()
    twin = jaxattn.from_torch(randomise(module, name))
    module.train()
    step = nnx.jit(lambda twin, x, train: twin(x, deterministic=not train), static_argnames="train")
    for index, train in enumerate([True, True, True, False]):
        x = inputs(index, B, C, L)
        expected = module.train(train)(torch.from_numpy(x)).detach().numpy()
        assert np.allclose(step(twin, x, train=train), expected, atol=2e-6)
    ours, theirs = jaxattn.state_dict(twin), statistics(module)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype and np.allclose(ours[key], value, rtol=1e-6, atol=1e-7), key
    if name != "untracked":
        assert ours["num_batches_tracked"] == 3 and ours["num_batches_tracked"].shape == ()


def test_the_default_call_changes_nothing_and_statistics_are_no_parameters():
    module = model()
    twin = jaxattn.from_torch(module)
    before = jaxattn.state_dict(twin)
    twin(inputs())
    assert all(np.array_equal(value, before[key]) for key, value in jaxattn.state_dict(twin).items())
    norm = twin.layers[1]
    assert isinstance(norm, BatchNorm) and isinstance(norm.running_mean, nnx.BatchStat)
    trained = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(twin, nnx.Param))}
    assert trained == {f"layers.{place}.{name}" for place in (0, 1) for name in ("weight", "bias")} | {
        "layers.5.kernel",
        "layers.5.bias",
    }


def test_where_the_new_statistics_go():
    """jax.grad works on a copy, which it can return; nnx.grad writes to the module. Neither differentiates them."""
    twin = jaxattn.from_torch(nn.BatchNorm1d(C).eval())
    x = inputs(0, B, C)

    def loss(twin, x):
        return (twin(x, deterministic=False) ** 3).sum(), twin

    gradient, trained = jax.grad(loss, has_aux=True)(twin, x)
    assert twin.num_batches_tracked[...] == 0 and trained.num_batches_tracked[...] == 1
    assert not np.asarray(gradient.running_mean[...]).any() and np.asarray(gradient.weight[...]).any()
    nnx.grad(lambda twin, x: loss(twin, x)[0])(twin, x)
    assert np.allclose(twin.running_mean[...], 0.1 * x.mean(0), atol=1e-7)
    assert np.allclose(twin.running_var[...], 0.9 + 0.1 * x.var(0, ddof=1), atol=1e-6)


def test_compare_covers_both_modes():
    module = model()
    twin = jaxattn.from_torch(module)
    jaxattn.parity.compare(module, twin, inputs()).assert_ok()
    before = statistics(module)
    report = jaxattn.parity.compare(module, twin, inputs(), dropout=DropoutPlan())
    report.assert_ok()
    gathered = [row.what for row in report.rows if row.what.endswith("after the call")]
    names = ("running_mean", "running_var", "num_batches_tracked")
    assert gathered == [f"1.{name} after the call" for name in names]
    assert all(np.array_equal(value, before[name]) for name, value in statistics(module).items())
    twin.layers[1].momentum = 0.2
    report = jaxattn.parity.compare(module, twin, inputs(), dropout=DropoutPlan())
    assert {row.what for row in report.rows if row.problems} == {f"1.{name} after the call" for name in names[:2]}
    assert jaxattn.parity.trace(module, twin, inputs()).cause is not None


def test_training_mode_without_a_plan_is_refused():
    module = model()
    twin = jaxattn.from_torch(module)
    module[1].train()
    for check in (jaxattn.parity.compare, jaxattn.parity.trace):
        with pytest.raises(
            ValueError, match=r"must be in evaluation mode.*`1` in training mode; call .*eval\(\) first"
        ):
            check(module, twin, inputs())
    with pytest.warns(
        UserWarning, match="with batch norm; its Flax twin computes with and updates .* deterministic=False"
    ):
        jaxattn.from_torch(module)
    with pytest.warns(UserWarning, match="Some batch norms in it are in evaluation mode"):
        jaxattn.from_torch(nn.Sequential(nn.BatchNorm1d(C), nn.BatchNorm1d(C).eval()))


def test_training_tracks_the_same_statistics():
    module = nn.Sequential(nn.Linear(4, C), nn.BatchNorm1d(C), nn.Linear(C, 2))
    twin = jaxattn.from_torch(randomise(module, "trained"))
    data = [(inputs(step, B, 4).astype(np.float64),) for step in range(3)]
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    report = jaxattn.parity.train(module, twin, optimizer, data, dropout=DropoutPlan())
    report.assert_ok()
    twin.layers[1].momentum = 0.2
    report = jaxattn.parity.train(module, twin, optimizer, data, dropout=DropoutPlan())
    assert not report.ok and "running_" in str(report)


def test_statistics_go_back_and_come_from_files():
    module, other = model(), model()
    twin = jaxattn.from_torch(module)
    nnx.jit(lambda twin, x: twin.layers[1](x, deterministic=False))(twin, inputs(0, B, C, L))
    report = jaxattn.to_torch(twin, other)
    assert report.loaded == len(other.state_dict()) and not report.missing
    assert int(other[1].num_batches_tracked) == 8 and not torch.equal(other[1].running_mean, module[1].running_mean)
    assert np.allclose(other(torch.from_numpy(inputs())).detach(), twin(inputs()), atol=1e-5)
    weights = statistics(other)
    for count, sentence in (
        (np.asarray(2**24 + 1), "must be a count from 0 to 16777216, got 16777217"),
        (np.asarray(-1), "must be a count from 0 to 16777216, got -1"),
        (np.asarray(3.0, np.float32), "is float32, a count is int64"),
    ):
        with pytest.raises(ConversionError, match=sentence):
            jaxattn.load_state_dict(twin, weights | {"1.num_batches_tracked": count})
    with pytest.raises(ConversionError, match="missing `1.running_var`"):
        jaxattn.load_state_dict(twin, {name: value for name, value in weights.items() if name != "1.running_var"})
    jaxattn.load_state_dict(twin, weights | {"1.num_batches_tracked": np.asarray(2**24)})
    assert jaxattn.state_dict(twin)["1.num_batches_tracked"] == 2**24


def test_settings_that_the_buffers_contradict_are_refused():
    module = nn.BatchNorm1d(C)
    module.track_running_stats = False
    with pytest.raises(NotImplementedError, match="if and only if track_running_stats is set"):
        jaxattn.from_torch(module)


class Hand(nnx.Module):
    """Flax's own layers under PyTorch's names."""

    def __init__(self):
        self.conv = nnx.Conv(2, 4, (3,), padding="VALID", rngs=nnx.Rngs(0))
        self.bn = nnx.BatchNorm(4, use_running_average=True, epsilon=1e-5, rngs=nnx.Rngs(0))
        self.gn = nnx.GroupNorm(4, num_groups=2, epsilon=1e-5, rngs=nnx.Rngs(0))

    def __call__(self, input):
        return self.gn(self.bn(self.conv(jnp.swapaxes(input, 1, 2)))).swapaxes(1, 2)


def test_a_module_of_flaxs_own_layers_loads_pytorchs_statistics():
    parts = {"conv": nn.Conv1d(2, 4, 3), "bn": nn.BatchNorm1d(4), "gn": nn.GroupNorm(2, 4)}
    module = randomise(nn.Sequential(), "hand")
    for name, part in parts.items():
        module.add_module(name, randomise(part, name))
    parts["bn"].running_mean.fill_(0.5)
    parts["bn"].num_batches_tracked.fill_(5)
    hand = Hand()
    report = jaxattn.load_state_dict(hand, module.state_dict())
    assert report.constants == ["bn.num_batches_tracked"]
    jaxattn.parity.compare(module, hand, inputs()).assert_ok()
    assert jaxattn.state_dict(hand).keys() == module.state_dict().keys() - {"bn.num_batches_tracked"}
