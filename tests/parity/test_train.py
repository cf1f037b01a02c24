"""The same steps in torch and in JAX agree, and a wrong step is found where it happens."""

import copy
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.layers import linear as linear_layer
from jaxattn.parity import DropoutPlan, TrainReport, train

from ..inputs import generator
from .training import DATA, STEPS, B, F, G, adam, adamw, from_step, halving, linear, sgd


def test_a_tensor_that_is_not_updated_is_named(randomised) -> None:
    module, twin = linear(randomised)
    frozen = optax.partition(
        {"kernel": optax.sgd(0.1), "bias": optax.set_to_zero()},
        lambda params: jax.tree_util.tree_map_with_path(lambda path, _: path[0].key, params),
    )
    report = train(module, twin, sgd(), DATA, tx=frozen)
    assert report.first == 0 and len(report.problems) == 1 and "`bias`" in report.problems[0]
    assert report.steps[0].worst == "bias"


def test_one_loss_that_only_torch_can_compute_is_named(randomised) -> None:
    module, twin = linear(randomised)
    data = [(DATA[0], np.zeros((B, G)))]
    with pytest.raises(TypeError, match=r"`loss` failed on JAX arrays \(TypeError: .*: give a pair \(torch's, JAX's\)"):
        train(module, twin, sgd(), data, loss=nn.functional.mse_loss)


class Partial(nn.Module):
    """`unused` gets no gradient, `frozen` wants none, `left` is no business of the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.left, self.unused = (nn.Linear(F, F) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.left(self.frozen(self.used(x)))


class FlaxPartial(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.used, self.frozen, self.left, self.unused = (linear_layer(F, F, rngs=rngs) for _ in range(4))

    def __call__(self, x):
        return self.left(self.frozen(self.used(x)))


@pytest.mark.parametrize(
    ("optimizer", "skipped"),
    [(sgd(momentum=0.9, weight_decay=0.3), ("left",)), (adamw(weight_decay=0.3), ("left", "frozen"))],
)
def test_what_torch_skips_is_not_decayed(optimizer, skipped: tuple[str, ...], randomised) -> None:
    module, twin = randomised(Partial()), FlaxPartial(nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    trained = [p for name, p in module.named_parameters() if not name.startswith(skipped)]
    report = train(module, twin, optimizer(trained), DATA, clip_norm=0.1)
    report.assert_ok()
    assert train(module, twin, optimizer(trained), DATA, tx=optax.sgd(0.1)).first == 0


def test_frozen_weights_stay_through_from_torch(randomised) -> None:
    module = randomised(nn.Sequential(nn.Linear(F, G), nn.Linear(G, F)))
    module[1].requires_grad_(False)
    report = train(module, jaxattn.from_torch(module), adamw(weight_decay=0.3), DATA, clip_norm=0.1)
    report.assert_ok()


def test_groups_a_live_state_and_a_live_scheduler_go_on(randomised) -> None:
    """Torch trained for three steps with two groups and LambdaLR; both sides go on from there."""
    module = randomised(nn.Linear(F, G), torch.float64)
    optimizer = torch.optim.AdamW([{"params": [module.weight]}, {"params": [module.bias], "lr": 0.3, "eps": 0.1}])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [halving, lambda step: 1.0 / (1.0 + step)])
    for x in torch.from_numpy(DATA[:3]):
        optimizer.zero_grad()
        (module(x) ** 2).sum().backward()
        optimizer.step()
        scheduler.step()
    before = copy.deepcopy(optimizer.state_dict())
    with jax.enable_x64(True):
        twin = jaxattn.from_torch(module)
        report = train(module, twin, optimizer, DATA, schedule=scheduler)
    report.assert_ok()
    assert report.optimizer == "AdamW (2 groups, a schedule)"
    after = optimizer.state_dict()
    assert str(after) == str(before) and scheduler.last_epoch == 3


def cross_entropy(logits, target):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(target, G)).sum(-1).mean()


def test_a_loss_of_ones_own_with_targets(randomised) -> None:
    targets = generator("targets").integers(0, G, (STEPS, B))
    losses = (nn.functional.cross_entropy, cross_entropy)
    report = train(*linear(randomised), adam(), zip(DATA, targets, strict=True), loss=losses)
    report.assert_ok()
    weight, bias = (p.detach().double() for p in linear(randomised)[0].parameters())
    logits = torch.from_numpy(DATA[0]) @ weight.T + bias
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(targets[0]))
    assert report.steps[0].torch_loss == pytest.approx(float(expected), rel=1e-12)


def test_data_is_repeated_and_steps_may_be_fewer(randomised) -> None:
    pair = linear(randomised)
    assert len(train(*pair, sgd(), DATA, 2).steps) == 2
    assert len(train(*pair, sgd(), (x for x in DATA[:2]), 5).steps) == 5


def test_nothing_is_changed(randomised) -> None:
    module, twin = linear(randomised)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    weights, flax_weights = copy.deepcopy(module.state_dict()), jaxattn.state_dict(twin)
    train(module, twin, optimizer, DATA, schedule=halving).assert_ok()
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.1
    assert "initial_lr" not in optimizer.param_groups[0]
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert all(np.array_equal(value, flax_weights[name]) for name, value in jaxattn.state_dict(twin).items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in module.parameters())
    assert not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue] -- made at run time


def test_weights_that_differ_are_told_first(randomised) -> None:
    module, twin = linear(randomised)
    twin.kernel[...] = twin.kernel[...] + 1.0
    report = train(module, twin, sgd(), DATA)
    assert report.first == 0 and not report.ok
    assert report.problems[0].startswith("before the first step: `weight` differs in 35 of 35")
    assert any(problem.startswith("loss: ") for problem in report.problems)


class NoBiasGradient(nnx.Module):
    """Right outputs, no gradient for the bias."""

    def __init__(self, rngs: nnx.Rngs):
        self.weight, self.bias = nnx.Param(rngs.normal((G, F))), nnx.Param(rngs.normal((G,)))

    def __call__(self, x):
        return x @ self.weight[...].T + jax.lax.stop_gradient(self.bias[...])


def test_a_wrong_gradient_is_told_apart_from_a_wrong_update(randomised) -> None:
    module, twin = randomised(nn.Linear(F, G)), NoBiasGradient(nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    report = train(module, twin, sgd(), DATA)
    assert [problem.split(":")[0] for problem in report.problems] == ["gradient of `bias`", "after the update `bias`"]


def test_an_encoder_layer_with_dropout_and_everything(randomised) -> None:
    """Adam turns the noise of the key bias, a third of in_proj_bias, into steps: those are left out, and told."""
    layer = randomised(nn.TransformerEncoderLayer(6, 2, 5, dropout=0.3, batch_first=True))
    twin = jaxattn.from_torch(layer)
    layer.train()
    decayed = [p for p in layer.parameters() if p.ndim > 1]
    others = [p for p in layer.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.01, eps=1e-12)
    data = generator("encoder").standard_normal((STEPS, B, 5, 6))
    options: dict[str, Any] = {"schedule": halving, "clip_norm": 0.5}
    report = train(layer, twin, optimizer, data, dropout=DropoutPlan(1), **options)
    report.assert_ok()
    assert "`self_attn.in_proj_bias` (6 of 18 elements)" in report.notes[0]
    assert all(module.training for module in layer.modules())


def test_every_step_has_masks_of_its_own(randomised) -> None:
    module = randomised(nn.Sequential(nn.Linear(F, G), nn.Dropout(0.5)))
    data = [(DATA[0], DATA[0, :, :G])] * 3
    still = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731 -- a function, as the others
    options: dict[str, Any] = {"loss": lambda output, target: (output * target).sum(), "dropout": DropoutPlan(1)}
    report = train(module, jaxattn.from_torch(module), still, data, **options)
    report.assert_ok()
    assert len({step.torch_loss for step in report.steps}) == 3


def test_report_as_text_and_json(randomised) -> None:
    report = train(*linear(randomised), sgd(), DATA, tx=optax.sgd(from_step(1, 0.1, 0.2)))
    assert isinstance(report, TrainReport)
    text, json = str(report), report.to_json()
    assert "they part at step 1" in text and "after the update `weight`" in text
    assert [line.split("│")[-2].strip() for line in text.splitlines() if line.startswith("│")] == [
        *("ok", "parts", "follows", "follows")
    ]
    assert json["first"] == 1 and json["ok"] is False and len(json["steps"]) == STEPS
    assert {"optax", "torch", "jax"} <= set(json["versions"]) and json["conditions"]["optax"] == "given"
