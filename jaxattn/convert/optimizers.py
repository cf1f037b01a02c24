"""torch.optim into optax, exactly, or refused by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .._tensors import default_dtype
from . import optimizer_steps
from .optimizer_groups import FROZEN, LEFT, groups_of
from .registry import class_name, hook_names
from .schedules import Course, courses_of


def _before(decay: Any) -> list[optax.GradientTransformation]:
    return [optax.add_decayed_weights(float(decay))] if decay else []


def _sgd(group: Mapping[str, Any], course: Course | None) -> list[optax.GradientTransformation]:
    cycle = None if course is None else course.momentum
    momentum, dampening, nesterov = float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"])
    if cycle is not None or (momentum and dampening):
        step = [optimizer_steps.momentum(momentum if cycle is None else cycle, dampening, nesterov)]
    else:
        step = [optax.trace(momentum, nesterov=nesterov)] if momentum else []
    return [*_before(group["weight_decay"]), *step]


def _around(step: optax.GradientTransformation, group: Mapping[str, Any]) -> list[optax.GradientTransformation]:
    """Coupled decay is part of the gradient, decoupled decay of the update."""
    decay = _before(group["weight_decay"])
    return [step, *decay] if group.get("decoupled_weight_decay") else [*decay, step]


def _adam(group: Mapping[str, Any], course: Course | None) -> list[optax.GradientTransformation]:
    cycle = None if course is None else course.momentum
    (beta1, beta2), eps, amsgrad = (float(beta) for beta in group["betas"]), float(group["eps"]), bool(group["amsgrad"])
    if cycle is None and not amsgrad:
        return _around(optax.scale_by_adam(beta1, beta2, eps), group)
    return _around(optimizer_steps.adam(beta1 if cycle is None else cycle, beta2, eps, amsgrad), group)


def _nadam(group: Mapping[str, Any], course: Course | None) -> list[optax.GradientTransformation]:
    cycle = None if course is None else course.momentum
    beta1, beta2 = (float(beta) for beta in group["betas"])
    options = beta2, float(group["eps"]), float(group["momentum_decay"]), group["product_dtype"]
    return _around(optimizer_steps.nadam(beta1 if cycle is None else cycle, *options), group)


def _rmsprop(group: Mapping[str, Any], course: Course | None) -> list[optax.GradientTransformation]:
    cycle = None if course is None else course.momentum
    momentum = cycle or (float(group["momentum"]) or None)
    step = optimizer_steps.rmsprop(float(group["alpha"]), float(group["eps"]), momentum, bool(group["centered"]))
    return _around(step, group)


def _adagrad(group: Mapping[str, Any], course: Course | None) -> list[optax.GradientTransformation]:
    del course
    initial = float(group["initial_accumulator_value"])
    return _around(optimizer_steps.adagrad(float(group["lr_decay"]), initial, float(group["eps"])), group)


#: torch's class → how one of its groups becomes what precedes the learning rate.
OPTIMIZERS: dict[str, Callable[[Mapping[str, Any], Course | None], list[optax.GradientTransformation]]] = {
    "torch.optim.sgd.SGD": _sgd,
    "torch.optim.adam.Adam": _adam,
    "torch.optim.adamw.AdamW": _adam,
    "torch.optim.nadam.NAdam": _nadam,
    "torch.optim.rmsprop.RMSprop": _rmsprop,
    "torch.optim.adagrad.Adagrad": _adagrad,
}
#: Options of a group that must be off.
REFUSED_OPTIONS = {
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
    steps: int | None = None,
) -> optax.GradientTransformation:
    """The optax transformation that does what `torch_optimizer` does, on `nnx.state(flax_module, nnx.Param)`.

    Translated are SGD (momentum, dampening, nesterov), Adam and AdamW (amsgrad), NAdam, RMSprop and Adagrad with their
    param groups, and schedulers that cycle the momentum or the first beta. weight_decay is added to the gradient before
    the optimizer, unless torch decouples it. A parameter with requires_grad=False, one that no group holds, and one
    without a gradient keep their values, decay included.

        tx = jaxattn.convert.optimizer(torch_optimizer, torch_module, flax_module)
        optimizer = nnx.Optimizer(flax_module, tx, wrt=nnx.Param)

    Args:
        torch_optimizer: a live one, of the parameters of `torch_module`.
        torch_module: names the parameters.
        flax_module: its twin.
        schedule: torch's scheduler of `torch_optimizer`, which makes a step after each of the optimizer's and goes on
            where it stands (`jaxattn.convert.schedules` lists the classes); or a function: step 0, 1, … → factor of
            the learning rate, as LambdaLR takes it, traced with a float64 step.
        clip_norm: as in torch.nn.utils.clip_grad_norm_(torch_module.parameters(), clip_norm) before each step.
        unused: torch's names of parameters that never get a gradient (torch skips them; in JAX their gradient is 0).
            Those that have no state while others have are found without.
        steps: how many steps the whole run has: a schedule that can't be traced is tabulated for so many, and is not a
            number beyond.

    Raises:
        TypeError: a function that can't be traced, and no `steps`.
        NotImplementedError: another optimizer or scheduler, or an option without an exact translation.
        ValueError: parameters that are not in the module, or groups that part what Flax holds as one parameter.
    """
    _check_translatable(torch_optimizer)
    groups = groups_of(torch_optimizer, torch_module, flax_module, unused=unused)
    courses = courses_of(torch_optimizer, schedule, steps)
    transforms: dict[Any, optax.GradientTransformation] = {FROZEN: optax.set_to_zero(), LEFT: optax.set_to_zero()}
    rule, defaults = OPTIMIZERS[class_name(torch_optimizer)], {"product_dtype": _product_dtype(torch_optimizer)}
    for index, (group, course) in enumerate(zip(torch_optimizer.param_groups, courses, strict=True)):
        transforms[str(index)] = optax.chain(*rule(defaults | group, course), _learning_rate(group, course))
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


def _learning_rate(group: Mapping[str, Any], course: Course | None) -> optax.GradientTransformation:
    if course is None:
        return optax.scale(-float(group["lr"]))
    return optax.scale_by_schedule(lambda count: -course.rate(count))


def _product_dtype(torch_optimizer: Any) -> Any:
    """The dtype of NAdam's product: its state's, else torch's default."""
    products = [state["mu_product"].dtype for state in torch_optimizer.state.values() if "mu_product" in state]
    double = (str(products[0]) if products else default_dtype()) == "torch.float64"
    return jnp.result_type(float) if double else jnp.float32


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
