"""The state of a torch optimizer as optax's, so that a run continues in JAX where it stopped in PyTorch."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from .._checks import ConversionError
from .._tensors import to_numpy
from . import optimizer_steps
from .naming import rules_of
from .optimizer_groups import Groups, groups_of, path_of
from .optimizers import optimizer
from .rules import Rule
from .schedules import count_of

#: optax's state → (its field, torch's name) of each moment.
MOMENTS: dict[type, tuple[tuple[str, str], ...]] = {
    optax.ScaleByAdamState: (("mu", "exp_avg"), ("nu", "exp_avg_sq")),
    optax.TraceState: (("trace", "momentum_buffer"),),
    optax.ScaleByScheduleState: (),
    optimizer_steps.MomentumState: (("trace", "momentum_buffer"),),
    optimizer_steps.AdamState: (("mu", "exp_avg"), ("nu", "exp_avg_sq"), ("nu_max", "max_exp_avg_sq")),
    optimizer_steps.NAdamState: (("mu", "exp_avg"), ("nu", "exp_avg_sq")),
    optimizer_steps.RMSpropState: (("square", "square_avg"), ("mean", "grad_avg"), ("trace", "momentum_buffer")),
    optimizer_steps.AdagradState: (("total", "sum"),),
}


def optimizer_state(
    torch_optimizer: Any,
    torch_module: Any,
    flax_module: nnx.Module,
    *,
    schedule: Any = None,
    clip_norm: float | None = None,
    unused: Iterable[str] = (),
    steps: int | None = None,
    step: int | None = None,
) -> Any:
    """torch's moments and counts in the structure of `tx.init(nnx.state(flax_module, nnx.Param))`.

    `tx` is `jaxattn.convert.optimizer` with the same arguments; exp_avg becomes mu, exp_avg_sq nu, momentum_buffer the
    trace, in Flax's layouts; the step every count, the schedule's included. Without state all is as at the start.

        optimizer = nnx.Optimizer(flax_module, tx, wrt=nnx.Param)
        state = jaxattn.convert.optimizer_state(torch_optimizer, torch_module, flax_module)
        nnx.update(optimizer.opt_state, nnx.state(state))

    Args:
        torch_optimizer: a live one, of the parameters of `torch_module`.
        torch_module: names the parameters.
        flax_module: its twin, with the weights that the next step starts from.
        schedule: as for `optimizer`.
        clip_norm: as for `optimizer`.
        unused: as for `optimizer`.
        steps: as for `optimizer`.
        step: how many steps were made; by default Adam's own count, else the scheduler's.

    Raises:
        NotImplementedError: another optimizer, or an option without an exact translation.
        ValueError: parameters of one group with different counts; a schedule for an optimizer that counts no steps.
        ConversionError: moments of another shape or dtype than the parameter.
    """
    unused = tuple(unused)
    options: dict[str, Any] = {"schedule": schedule, "clip_norm": clip_norm, "unused": unused, "steps": steps}
    tx = optimizer(torch_optimizer, torch_module, flax_module, **options)
    groups = groups_of(torch_optimizer, torch_module, flax_module, unused=unused)
    rules = {rule.target: rule for rule in rules_of(flax_module)}
    counts = {label: _step(label, groups, torch_optimizer.state) for label in set(groups.labels.values())}
    overall = 0 if schedule is None else steps_made(torch_optimizer, schedule, step)

    def filled(label: Any, state: Any) -> Any:
        fields = {
            field: _moments(getattr(state, field), name, groups, rules, torch_optimizer.state)
            for field, name in MOMENTS[type(state)]
        }
        if "count" in state._fields:  # every tuple has an attribute of that name
            count = overall if isinstance(state, optax.ScaleByScheduleState) else counts.get(label)
            fields["count"] = jnp.asarray(count or 0, jnp.int32)
        if "schedule_count" in state._fields:
            fields["schedule_count"] = jnp.asarray(overall, jnp.int32)
        states = [torch_optimizer.state.get(parameter, {}) for parameter in groups.of_label(label)]
        if isinstance(state, optimizer_steps.MomentumState):
            fields["begun"] = jnp.asarray(any(found.get("momentum_buffer") is not None for found in states))
        if isinstance(state, optimizer_steps.NAdamState):
            products = [found["mu_product"] for found in states if "mu_product" in found]
            fields["mu_product"] = jnp.asarray(float(products[0]) if products else 1.0, state.mu_product.dtype)
        return state._replace(**fields)

    def partition(state: Any) -> Any:
        if not isinstance(state, optax.PartitionState):
            return state
        inner = {
            label: jax.tree.map(
                lambda part, label=label: filled(label, part) if type(part) in MOMENTS else part,
                part,
                is_leaf=lambda part: type(part) in MOMENTS,
            )
            for label, part in state.inner_states.items()
        }
        return state._replace(inner_states=inner)

    initial = tx.init(nnx.state(flax_module, nnx.Param))
    return jax.tree.map(partition, initial, is_leaf=lambda part: isinstance(part, optax.PartitionState))


def steps_made(torch_optimizer: Any, schedule: Any = None, step: int | None = None) -> int:
    """Where the schedule stands: `step` if given, the scheduler's own count, else the most that a parameter counts.

    Raises:
        ValueError: nothing counted the steps.
    """
    if step is not None:
        return step
    if hasattr(schedule, "optimizer"):
        return count_of(schedule)
    states = [state for state in torch_optimizer.state.values() if state]
    counts = [int(state["step"]) for state in states if "step" in state]
    if states and not counts:
        raise ValueError("SGD counts no steps: pass step=how many were made, or torch's scheduler as `schedule`.")
    return max(counts, default=0)


def _step(label: str, groups: Groups, state: Any) -> int | None:
    """How many steps the parameters of this group made; None where nothing counts them."""
    counts = {
        target: int(state[parameter]["step"])
        for target, parameters in groups.sources.items()
        for parameter in parameters
        if groups.labels[target] == label and "step" in state.get(parameter, {})
    }
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"`{target}`: {count}" for target, count in counts.items())
        raise ValueError(
            f"optax counts steps once a group, got {listed}: put parameters that had gradients in some steps only into "
            "a group of their own."
        )
    return next(iter(counts.values()), None)


def _moments(tree: Any, name: str, groups: Groups, rules: dict[str, Rule], state: Any) -> Any:
    """`tree` with torch's moment of that name in place of each parameter's zeros."""

    def moment(path: tuple[Any, ...], zeros: Any) -> Any:
        target = path_of(path)
        found = [state.get(parameter, {}).get(name) for parameter in groups.sources[target]]
        if all(tensor is None for tensor in found):
            return zeros
        tensors = [
            np.zeros(tuple(parameter.shape), zeros.dtype) if tensor is None else to_numpy(tensor)
            for tensor, parameter in zip(found, groups.sources[target], strict=True)
        ]
        value = rules[target].transform.forward(tensors)
        if value.shape != zeros.shape or value.dtype != zeros.dtype:
            raise ConversionError(
                f"`{name}` must be as the Flax parameter `{target}`: {zeros.dtype} {zeros.shape}, got {value.dtype} "
                f"{value.shape}."
            )
        return jnp.asarray(value)

    return jax.tree_util.tree_map_with_path(moment, tree)
