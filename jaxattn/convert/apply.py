"""Weights into a Flax module and out of it, by its rules: all or nothing, bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx

from .._checks import ConversionError, listed
from .._tensors import as_numpy
from ..layers import is_held
from .match import match_keys
from .naming import Naming, dotted
from .problems import (
    check_mapping,
    check_module,
    constant_problems,
    coverage_problems,
    fit_problems,
    kind_problem,
    tie_problems,
)


@dataclass
class LoadReport:
    """What load_state_dict or to_torch did: how many tensors, which keys were changed on the way, which were left.

    `tied` has PyTorch's further names of loaded tensors for which the Flax module has no name.
    """

    loaded: int = 0
    renamed: dict[str, str] = field(default_factory=dict)
    unwrapped: dict[str, str] = field(default_factory=dict)
    outside_prefix: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.loaded} tensors loaded"]
        for title, keys in (
            ("renamed", [f"{old} → {new}" for old, new in self.renamed.items()]),
            ("wrapper segments removed", [f"{old} → {new}" for old, new in self.unwrapped.items()]),
            ("outside the prefix, not read", self.outside_prefix),
            ("constants, checked and not needed", self.constants),
            ("missing, left as they were", self.missing),
            ("unexpected, not read", self.unexpected),
            ("tied in PyTorch, loaded with the other name", [f"{name} = {other}" for name, other in self.tied.items()]),
        ):
            if keys:
                lines.append(f"{title}: {listed(keys)}")
        return "\n".join(lines)


def load_state_dict(
    module: nnx.Module,
    state_dict: Mapping[Any, Any],
    *,
    strict: bool = True,
    prefix: str = "",
    rename: Mapping[str, str] | None = None,
) -> LoadReport:
    """Load PyTorch weights into `module`, in place; when anything is wrong nothing is assigned.

    Args:
        module: a Flax module of this package, or one made of Flax layers; abstract (nnx.eval_shape) modules are filled.
        state_dict: PyTorch's names and layouts: NumPy arrays, torch tensors or a checkpoint.
        strict: False accepts missing keys (those parameters stay) and unexpected keys; both are in the report. Wrong
            shapes and dtypes are errors always.
        prefix: take the sub-tree below this path.
        rename: old path → new path, whole leading segments.

    Returns:
        A LoadReport. Wrapper segments (`module.`, `_orig_mod.`, `_fsdp_wrapped_module.`, `_checkpoint_wrapped_module.`)
        are removed where that makes a key match, and reported. A tensor that is shared under several names may come
        under any of them.

    Raises:
        ConversionError: lists every missing, unexpected and mismatched key, with what to do.
    """
    check_module(module)
    check_mapping(state_dict)
    naming = Naming(module)
    rules, ties = naming.rules(), naming.ties()
    constants = {constant.source: constant.values for constant in naming.constants()}
    expected = [source for rule in rules for source in rule.sources]
    keys = match_keys(state_dict, [*expected, *ties, *constants], prefix=prefix, rename=rename)
    for name, stored in ties.items():
        if name in keys.source_of:
            keys.source_of.setdefault(stored, keys.source_of[name])
    missing = [name for name in expected if name not in keys.source_of]
    absent = set(missing)
    loadable = [rule for rule in rules if absent.isdisjoint(rule.sources)]
    parameters = parameters_of(module)

    def tensor(name: str) -> Any:
        return state_dict[keys.source_of[name]]

    problems = coverage_problems(missing, keys) if strict else []
    problems += [problem for rule in loadable for problem in fit_problems(rule, parameters[rule.target], tensor)]
    others = {name: keys.source_of[name] for name in (*ties, *constants) if name in keys.source_of}
    unreadable = {name: problem for name, key in others.items() if (problem := kind_problem(key, state_dict[key]))}
    present = {name: as_numpy(tensor(name)) for name in constants if name in others and name not in unreadable}
    tied = {others[name]: keys.source_of[to] for name, to in ties.items() if name in others and name not in unreadable}
    problems += [*unreadable.values(), *tie_problems(tied, state_dict), *constant_problems(constants, present)]
    if problems:
        kind = type(module).__name__
        raise ConversionError(
            f"The weights do not fit {kind}; nothing was loaded. Problems: {len(problems)}.", problems
        )
    values = {}
    for rule in loadable:
        value = rule.transform.forward([as_numpy(tensor(source)) for source in rule.sources])
        values[rule.target] = _to_device(value, parameters[rule.target])
    assign(module, values)
    return LoadReport(
        loaded=sum(len(rule.sources) for rule in loadable),
        renamed=keys.renamed,
        unwrapped=keys.unwrapped,
        outside_prefix=keys.outside_prefix,
        constants=list(present),
        missing=missing,
        unexpected=keys.unexpected,
    )


def state_dict(module: Any, *, like: nnx.Module | None = None) -> dict[str, np.ndarray]:
    """The weights of `module` under PyTorch's names and in its layouts: the inverse of load_state_dict, bit for bit.

    Args:
        module: a module, or its gradient (a module from jax.grad, or an nnx.State from nnx.grad).
        like: the module whose rules apply; needed for an nnx.State, which doesn't know its classes.

    Returns:
        C-contiguous NumPy arrays that own their memory, dtypes kept (bfloat16 as ml_dtypes has it); names that share a
        tensor have one array.

    Raises:
        TypeError: an nnx.State without `like`, or no module at all.
    """
    if isinstance(module, nnx.State) and like is None:
        raise TypeError("An nnx.State doesn't know its module's rules: pass state_dict(state, like=module).")
    owner: Any = module if like is None else like
    check_module(owner)
    parameters = parameters_of(module)
    result = {}
    naming = Naming(owner)
    for rule in naming.rules():
        if rule.target in parameters:
            tensors = rule.transform.backward(np.asarray(parameters[rule.target]))
            result.update(zip(rule.sources, tensors, strict=True))
    return result | {name: result[stored] for name, stored in naming.ties().items() if stored in result}


def parameters_of(module: Any) -> dict[str, Any]:
    """Every parameter of a module or nnx.State by its path, "encoder.layers.0.linear1.kernel"."""
    state = module if isinstance(module, nnx.State) else nnx.state(module, is_held)
    return {dotted(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def assign(module: nnx.Module, values: Mapping[str, Any]) -> None:
    """Give the parameters at these paths new values (or, in an abstract module, new shapes and dtypes)."""
    flat = nnx.to_flat_state(nnx.state(module, is_held))
    loaded = [(path, variable.replace(values[dotted(path)])) for path, variable in flat if dotted(path) in values]
    nnx.update(module, nnx.from_flat_state(loaded))


def _to_device(value: np.ndarray, parameter: Any) -> jax.Array:
    """Where the parameter lives; `value` is this package's own memory, so the array may keep using it."""
    return jax.device_put(value, parameter.sharding if isinstance(parameter, jax.Array) else None)
