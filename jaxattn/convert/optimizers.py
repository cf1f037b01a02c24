"""torch.optim into optax, exactly, or refused by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .optimizer_groups import FROZEN, LEFT, groups_of
from .registry import class_name, hook_names

#: Step → factor of the learning rate; one for every group, or one a group.
Schedule = Callable[[Any], Any]


def _sgd(group: Mapping[str, Any]) -> list[optax.GradientTransformation]:
    momentum = float(group["momentum"])
    return [
        *([optax.add_decayed_weights(float(group["weight_decay"]))] if group["weight_decay"] else []),
        *([optax.trace(momentum, nesterov=bool(group["nesterov"]))] if momentum else []),
    ]


def _adam(group: Mapping[str, Any]) -> list[optax.GradientTransformation]:
    """Coupled decay is part of the gradient, decoupled decay of the update."""
    beta1, beta2 = (float(beta) for beta in group["betas"])
    adam = optax.scale_by_adam(beta1, beta2, float(group["eps"]))
    if not group["weight_decay"]:
        return [adam]
    decay = optax.add_decayed_weights(float(group["weight_decay"]))
    return [adam, decay] if group.get("decoupled_weight_decay") else [decay, adam]


#: torch's class → how one of its groups becomes what precedes the learning rate.
OPTIMIZERS: dict[str, Callable[[Mapping[str, Any]], list[optax.GradientTransformation]]] = {
    "torch.optim.sgd.SGD": _sgd,
    "torch.optim.adam.Adam": _adam,
    "torch.optim.adamw.AdamW": _adam,
}
#: Options of a group that must be off; optax's nearest, if any, computes something else.
REFUSED_OPTIONS = {
    "dampening": "optax.trace adds the whole gradient",
    "amsgrad": "optax.scale_by_amsgrad takes the maximum after bias correction, torch before it",
    "maximize": "negate the loss instead",
    "differentiable": "differentiate through optax's update instead",
}


def optimizer(
    torch_optimizer: Any,
    torch_module: Any,
    flax_module: nnx.Module,
    *,
    schedule: Any = None,
    clip_norm: float | None = None,
    unused: Iterable[str] = (),
) -> optax.GradientTransformation:
    """The optax transformation that does what `torch_optimizer` does, on `nnx.state(flax_module, nnx.Param)`.

    Translated are SGD (momentum, nesterov), Adam and AdamW with their param groups. weight_decay of SGD and Adam is
    added to the gradient before the optimizer. A parameter with requires_grad=False, one that no group holds, and one
    without a gradient keep their values, decay included.

        tx = jaxattn.convert.optimizer(torch_optimizer, torch_module, flax_module)
        optimizer = nnx.Optimizer(flax_module, tx, wrt=nnx.Param)

    Args:
        torch_optimizer: a live one, of the parameters of `torch_module`.
        torch_module: names the parameters.
        flax_module: its twin.
        schedule: step 0, 1, … → factor of the learning rate, as torch's LambdaLR takes it, or the LambdaLR itself. It
            is traced with a floating step, float64 when 64-bit types are on.
        clip_norm: as in torch.nn.utils.clip_grad_norm_(torch_module.parameters(), clip_norm) before each step.
        unused: torch's names of parameters that never get a gradient (torch skips them; in JAX their gradient is 0).
            Those that have no state while others have are found without.

    Raises:
        NotImplementedError: another optimizer or scheduler, or an option without an exact translation.
        ValueError: parameters that are not in the module, or groups that part what Flax holds as one parameter.
    """
    _check_translatable(torch_optimizer)
    groups = groups_of(torch_optimizer, torch_module, flax_module, unused=unused)
    schedules = schedules_of(torch_optimizer, schedule)
    transforms: dict[Any, optax.GradientTransformation] = {FROZEN: optax.set_to_zero(), LEFT: optax.set_to_zero()}
    for index, (group, factor) in enumerate(zip(torch_optimizer.param_groups, schedules, strict=True)):
        rule = OPTIMIZERS[class_name(torch_optimizer)]
        transforms[str(index)] = optax.chain(*rule(group), _learning_rate(group, factor))
    update = optax.partition(transforms, groups.tree)
    if clip_norm is None:
        return update
    frozen = optax.masked(
        optax.set_to_zero(), lambda params: jax.tree.map(lambda label: label == FROZEN, groups.tree(params))
    )
    return optax.chain(frozen, clip_like_torch(clip_norm), update)


def clip_like_torch(max_norm: float) -> optax.GradientTransformation:
    """gradient · min(1, max_norm / (norm + 1e-6)), norm that of all gradients; optax's own adds nothing."""

    def clip(updates: Any, params: Any) -> Any:
        del params
        norm = optax.tree.norm(updates)
        factor = jnp.minimum(1.0, max_norm / (norm + 1e-6))
        return jax.tree.map(lambda update: update * factor.astype(update.dtype), updates)

    return optax.stateless(clip)


def _learning_rate(group: Mapping[str, Any], schedule: Schedule | None) -> optax.GradientTransformation:
    if schedule is None:
        return optax.scale(-float(group["lr"]))
    base = float(group.get("initial_lr", group["lr"]))

    def step_size(count: Any) -> Any:
        try:
            # Of an integer count optax's schedules make float32, whatever the parameters are.
            return -base * schedule(jnp.asarray(count, jnp.result_type(float)))
        except jax.errors.ConcretizationTypeError as error:
            raise TypeError(
                "`schedule` must take a traced step under jit: write jnp.minimum and jnp.where for min and if."
            ) from error

    return optax.scale_by_schedule(step_size)


def schedules_of(torch_optimizer: Any, schedule: Any) -> list[Schedule | None]:
    """One schedule for each group.

    Raises:
        NotImplementedError: a scheduler other than LambdaLR.
        ValueError: the optimizer has a scheduler that was not given.
    """
    groups = torch_optimizer.param_groups
    if schedule is None:
        if any("initial_lr" in group for group in groups):
            raise ValueError(
                "`torch_optimizer` has a learning-rate scheduler, got schedule=None: pass the LambdaLR, or a function "
                "of the step."
            )
        return [None] * len(groups)
    if hasattr(schedule, "lr_lambdas") and class_name(schedule) == "torch.optim.lr_scheduler.LambdaLR":
        return list(schedule.lr_lambdas)
    if hasattr(schedule, "last_epoch"):
        raise NotImplementedError(
            f"`schedule` must be a function of the step or a LambdaLR, got {class_name(schedule)}: write its factor of "
            "the learning rate as a function (a scheduler that also changes momentum has no translation)."
        )
    return [schedule] * len(groups)


def check_step_hooks(torch_optimizer: Any) -> None:
    """No hooks around the steps: copies and translations lose them.

    Raises:
        NotImplementedError: there are some.
    """
    hooks = [*torch_optimizer._optimizer_step_pre_hooks.values(), *torch_optimizer._optimizer_step_post_hooks.values()]
    if hooks:
        raise NotImplementedError(
            f"Hooks around an optimizer's steps have no translation, got {hook_names(hooks)}: remove them "
            "(handle.remove()), and put what they do into the JAX code."
        )


def _check_translatable(torch_optimizer: Any) -> None:
    name = class_name(torch_optimizer)
    if name not in OPTIMIZERS:
        listed = ", ".join(known.rpartition(".")[2] for known in OPTIMIZERS)
        raise NotImplementedError(f"An optimizer must be one of {listed} to become optax's exactly, got {name}.")
    check_step_hooks(torch_optimizer)
    for index, group in enumerate(torch_optimizer.param_groups):
        for option, reason in REFUSED_OPTIONS.items():
            if group.get(option):
                raise NotImplementedError(
                    f"`{option}` has no exact translation into optax ({reason}), got {option}={group[option]} in "
                    f"group {index}."
                )
