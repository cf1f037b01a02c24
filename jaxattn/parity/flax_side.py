"""The twin's runs: a Flax module on a copy of its state, in its own dtype or in float64."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..convert.apply import state_dict
from ..layers import is_parameter
from .arguments import Arguments, is_floating
from .dropout_plan import dropout_arguments
from .outputs import Flat, flatten_result, pair
from .quick import quickly
from .settings import highest_precision


@dataclass(frozen=True)
class FlaxRun:
    """Outputs in torch's order, gradients of each floating argument (by its index) and of each parameter.

    `buffers` are the statistics after a call in training mode, under torch's names.
    """

    names: tuple[str, ...]
    outputs: tuple[np.ndarray, ...]
    ignored: tuple[str, ...]
    argument_gradients: dict[int, np.ndarray]
    parameter_gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray] = field(default_factory=dict)


def in_float64(module: nnx.Module) -> nnx.Module:
    """A copy with float64 state, whose layers don't cast to their own `dtype`; call it with 64-bit types on."""
    graphdef, state = nnx.split(module)
    copy = nnx.merge(graphdef, jax.tree.map(_widened, state))
    for _, layer in nnx.iter_modules(copy):
        for name, value in list(vars(layer).items()):
            if _is_narrow_dtype(name, value):
                setattr(layer, name, jnp.float64)
    return copy


def _widened(array: Any) -> Any:
    """In NumPy: JAX would compile a cast for every shape."""
    if not is_floating(array):
        return array
    return jax.device_put(np.asarray(array).astype(np.float64), getattr(array, "sharding", None))


def _is_narrow_dtype(name: str, value: Any) -> bool:
    """Whether a module's attribute is a floating dtype narrower than float64."""
    if not (isinstance(value, (np.dtype, type)) or (isinstance(value, str) and name.endswith("dtype"))):
        return False
    try:
        dtype = jnp.dtype(value)
    except TypeError:
        return False
    return jnp.issubdtype(dtype, jnp.floating) and dtype != np.float64


def _is_trainable(path: Any, value: Any) -> bool:
    return is_parameter(path, value) and is_floating(value.get_value())


def run_flax(
    module: nnx.Module,
    arguments: Arguments,
    torch_flat: Flat,
    cotangents: Sequence[np.ndarray],
    *,
    masks: Mapping[str, np.ndarray] | None = None,
    quick: bool = False,
) -> FlaxRun:
    """Values and vector-Jacobian products of the module, by one jitted function.

    Args:
        module: the module; its parameters keep their dtype.
        arguments: of its call, already in the run's dtype.
        torch_flat: torch's outputs, which say which output is which.
        cotangents: one for each of torch's outputs.
        masks: keep masks by dropout site, for training mode; None is evaluation mode.
        quick: compile fast rather than well.

    Raises:
        ValueError: the module returns other arrays than torch.
        TypeError: the module takes no keep masks.
    """
    graphdef, params, rest = nnx.split(module, _is_trainable, ...)
    floating = {index: arguments.arrays[index] for index in arguments.floating}
    fixed = {index: array for index, array in enumerate(arguments.arrays) if index not in floating}
    seen: dict[str, tuple[str, ...]] = {}

    @(quickly if quick else jax.jit)
    def values_and_gradients(params, floating, rest, fixed, cotangents, masks):
        def forward(params, floating):
            arrays = {**floating, **fixed}
            args, kwargs = arguments.call_with([jnp.asarray(arrays[index]) for index in sorted(arrays)])
            dropping = {} if masks is None else dropout_arguments(module, masks)
            called = nnx.merge(graphdef, params, rest, copy=True)
            flat = flatten_result(called(*args, **kwargs, **dropping))
            names, order = pair(torch_flat, flat)
            seen.update(names=tuple(names), ignored=flat.ignored)
            outputs = dict(enumerate(flat.arrays[index] for index in order))
            statistics = None if masks is None else nnx.state(called, nnx.BatchStat)
            return {i: output for i, output in outputs.items() if is_floating(output)}, (outputs, statistics)

        differentiable, pullback, kept = jax.vjp(forward, params, floating, has_aux=True)
        cotangents = {i: cotangents[i].astype(output.dtype) for i, output in differentiable.items()}
        return *kept, *pullback(cotangents)

    with highest_precision():
        results = values_and_gradients(params, floating, rest, fixed, list(cotangents), masks)
    outputs, statistics, parameter_gradients, argument_gradients = jax.tree.map(np.asarray, results)
    return FlaxRun(
        seen["names"],
        tuple(outputs[index] for index in range(len(outputs))),
        seen["ignored"],
        argument_gradients,
        state_dict(parameter_gradients, like=module),
        {} if statistics is None else state_dict(statistics, like=module),
    )


def check_deterministic(module: nnx.Module) -> None:
    """No nnx.Dropout is active.

    Raises:
        ValueError: one is.
    """
    for path, layer in nnx.iter_modules(module):
        if isinstance(layer, nnx.Dropout) and layer.rate > 0 and not layer.deterministic:
            name = ".".join(str(part) for part in path)
            raise ValueError(
                f"Dropout must be off for a comparison, got nnx.Dropout `{name}` with deterministic=False; "
                "call flax_module.eval() first."
            )
