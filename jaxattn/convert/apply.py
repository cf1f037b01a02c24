"""Weights into a Flax module and out of it, by its rules: all or nothing, bit for bit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx

from .._checks import ConversionError
from .framework import layer_rules
from .match import match_keys
from .problems import check_mapping, check_module, constant_problems, coverage_problems, fit_problems
from .rules import Constant, Rule
from .tensors import as_numpy


@dataclass
class LoadReport:
    """What load_state_dict did: how many tensors, which keys were changed on the way, which were left."""

    loaded: int = 0
    renamed: dict[str, str] = field(default_factory=dict)
    unwrapped: dict[str, str] = field(default_factory=dict)
    outside_prefix: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.loaded} tensors loaded"]
        for title, keys in (
            ("renamed", [f"{old} → {new}" for old, new in self.renamed.items()]),
            ("wrapper segments removed", [f"{old} → {new}" for old, new in self.unwrapped.items()]),
            ("outside the prefix, not read", self.outside_prefix),
            ("constants, checked and not needed", self.constants),
            ("missing, left as they were", self.missing),
            ("unexpected, not read", self.unexpected),
        ):
            if keys:
                shown = ", ".join(keys[:5]) + (f", … ({len(keys)})" if len(keys) > 5 else "")
                lines.append(f"{title}: {shown}")
        return "\n".join(lines)


def rules_of(module: nnx.Module) -> list[Rule]:
    """One rule for each parameter, whole paths on both sides.

    A module's own `torch_rules()` comes first; a parameter that it doesn't name follows its layer's rule
    (`kernel` ↔ `weight` transposed, …) or keeps its name.
    """
    rules: dict[str, Rule] = {}
    for path, owner in _modules(module):
        for rule in getattr(owner, "torch_rules", tuple)():
            rules.setdefault(path + rule.target, rule.under(path, path))
    for path, owner in _modules(module):
        for rule in layer_rules(owner).values():
            rules.setdefault(path + rule.target, rule.under(path, path))
    return [rules.get(target) or Rule((target,), target) for target in parameters_of(module)]


def constants_of(module: nnx.Module) -> list[Constant]:
    """Tensors that checkpoints of this module may carry although they are no weights."""
    return [
        Constant(path + constant.source, constant.values)
        for path, owner in _modules(module)
        for constant in getattr(owner, "torch_constants", tuple)()
    ]


def _modules(module: nnx.Module) -> Iterator[tuple[str, nnx.Module]]:
    """Every module with its path, "" for the root and ending on a dot below it, outer modules first."""
    found = [("".join(f"{part}." for part in path), owner) for path, owner in nnx.iter_modules(module)]
    return iter(sorted(found, key=lambda item: item[0].count(".")))


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


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
        are removed where that makes a key match, and reported.

    Raises:
        ConversionError: lists every missing, unexpected and mismatched key, with what to do.
    """
    check_module(module)
    check_mapping(state_dict)
    rules, constants = rules_of(module), {constant.source: constant.values for constant in constants_of(module)}
    expected = [source for rule in rules for source in rule.sources]
    keys = match_keys(state_dict, [*expected, *constants], prefix=prefix, rename=rename)
    missing = [name for name in expected if name not in keys.source_of]
    loadable = [rule for rule in rules if not set(rule.sources) & set(missing)]
    parameters = parameters_of(module)

    def tensor(name: str) -> Any:
        return state_dict[keys.source_of[name]]

    present = {name: as_numpy(tensor(name)) for name in constants if name in keys.source_of}
    problems = coverage_problems(missing, keys) if strict else []
    problems += [problem for rule in loadable for problem in fit_problems(rule, parameters[rule.target], tensor)]
    problems += constant_problems(constants, present)
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
        C-contiguous NumPy arrays that own their memory, dtypes kept (bfloat16 as ml_dtypes has it).

    Raises:
        TypeError: an nnx.State without `like`, or no module at all.
    """
    if isinstance(module, nnx.State) and like is None:
        raise TypeError("An nnx.State doesn't know its module's rules: pass state_dict(state, like=module).")
    owner: Any = module if like is None else like
    check_module(owner)
    parameters = parameters_of(module)
    result = {}
    for rule in rules_of(owner):
        if rule.target in parameters:
            tensors = rule.transform.backward(np.asarray(parameters[rule.target]))
            result.update(zip(rule.sources, tensors, strict=True))
    return result


def parameters_of(module: Any) -> dict[str, Any]:
    """Every parameter of a module or nnx.State by its path, "encoder.layers.0.linear1.kernel"."""
    state = module if isinstance(module, nnx.State) else nnx.state(module, nnx.Param)
    return {_dotted(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def assign(module: nnx.Module, values: Mapping[str, Any]) -> None:
    """Give the parameters at these paths new values (or, in an abstract module, new shapes and dtypes)."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    loaded = [(path, variable.replace(values[_dotted(path)])) for path, variable in flat if _dotted(path) in values]
    nnx.update(module, nnx.from_flat_state(loaded))


def _to_device(value: np.ndarray, parameter: Any) -> jax.Array:
    """Where the parameter lives; `value` is this package's own memory, so the array may keep using it."""
    return jax.device_put(value, parameter.sharding if isinstance(parameter, jax.Array) else None)
