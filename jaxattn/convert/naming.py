"""Under which of PyTorch's names each parameter of a Flax module goes, shared ones included."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flax import nnx

from .._checks import ConversionError
from ..layers import is_held
from .framework import layer_constants, layer_rules
from .rules import Constant, Rule


@dataclass(frozen=True)
class Owner:
    """A module, its path, and PyTorch's paths of it: several where one module stands in several places."""

    module: nnx.Module
    path: str
    torch_paths: tuple[str, ...]


class Naming:
    """The names of one module's parameters.

    A module has its parts under PyTorch's names, unless its `torch_names()` says otherwise: {"layers.0": ("0", "3")}.
    `torch_ties()` of a module names tensors that PyTorch has twice and Flax once: {"head.weight": "embed.weight"}.
    """

    def __init__(self, module: nnx.Module):
        found = [(dotted(path), owner) for path, owner in nnx.iter_modules(module)]
        found.sort(key=lambda item: item[0].count(".") + bool(item[0]))
        self._tables: dict[str, Mapping[str, tuple[str, ...]]] = {
            path: getattr(owner, "torch_names", dict)() for path, owner in found
        }
        self.owners = [Owner(owner, path, self.torch_paths(path)) for path, owner in found]
        self._paths = [path for path, _ in nnx.to_flat_state(nnx.state(module, is_held))]
        self._parameters = [dotted(path) for path in self._paths]

    def torch_paths(self, path: str) -> tuple[str, ...]:
        """PyTorch's paths of a module or parameter."""
        found, at = [""], ""
        while path:
            table = self._tables.get(at, {})
            step = next((name for name in table if path == name or path.startswith(f"{name}.")), path.split(".")[0])
            found = [under(start, name) for start in found for name in table.get(step, (step,))]
            at, path = under(at, step), path[len(step) + 1 :]
        return tuple(found)

    def rules(self) -> list[Rule]:
        """One rule for each parameter, whole paths on both sides.

        A module's own `torch_rules()` comes first, outer modules before inner ones; a parameter that it doesn't name
        follows its layer's rule (`kernel` ↔ `weight` transposed, …) or keeps its name.

        Raises:
            ConversionError: two parameters go under one of PyTorch's names.
        """
        owned = {target: rule for target, (rule, _) in self._owned().items()}
        rules = [owned.get(target) or Rule((self.torch_paths(target)[0],), target) for target in self._parameters]
        self._check_distinct(rules)
        return rules

    def ties(self) -> dict[str, str]:
        """PyTorch's further names of shared tensors → the name under which the rules read them.

        Raises:
            ConversionError: a further name that a parameter has.
        """
        ties: dict[str, str] = {}
        owned = self._owned()
        for target in self._parameters:
            if target in owned:
                rule, owner = owned[target]
                first = owner.torch_paths[0]
                for other in owner.torch_paths[1:]:
                    ties |= {under(other, _below(source, first)): source for source in rule.sources}
            else:
                first, *others = self.torch_paths(target)
                ties |= dict.fromkeys(others, first)
        for owner in self.owners:
            for name, stored in getattr(owner.module, "torch_ties", dict)().items():
                ties |= {under(path, name): under(owner.torch_paths[0], stored) for path in owner.torch_paths}
        own = {source for rule in self.rules() for source in rule.sources}
        problems = [
            f"`{name}` is a parameter, and in `torch_ties()` it is `{stored}`: keep one."
            for name, stored in ties.items()
            if name in own and stored != name
        ]
        if problems:
            raise ConversionError("A tied tensor is held once.", problems)
        return {name: ties.get(stored, stored) for name, stored in ties.items()}

    def constants(self) -> list[Constant]:
        """Tensors that checkpoints of this module may carry although they are no weights."""
        return [
            Constant(under(path, constant.source), constant.values)
            for owner in self.owners
            for constant in (*layer_constants(owner.module), *getattr(owner.module, "torch_constants", tuple)())
            for path in owner.torch_paths
        ]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(PyTorch's path, Flax's path) of every module, then of those that only their tensors' names tell."""
        for owner in self.owners:
            yield from ((path, owner.path) for path in owner.torch_paths)
        for rule in self.rules():
            homes = {source.rpartition(".")[0] for source in rule.sources}
            if len(homes) == 1:
                yield homes.pop(), rule.target.rpartition(".")[0]

    def _check_distinct(self, rules: list[Rule]) -> None:
        paths: dict[str, list[tuple[Any, ...]]] = {}
        for path, rule in zip(self._paths, rules, strict=True):
            for source in rule.sources:
                paths.setdefault(source, []).append(path)
        problems = []
        for source, several in paths.items():
            if several[1:]:
                attributes = " and ".join(" → ".join(f"`{part}`" for part in path) for path in several)
                problems.append(f"Two parameters are `{source}` to PyTorch: the attributes {attributes}: keep one.")
        if problems:
            raise ConversionError("Every parameter must have a name of its own in PyTorch.", problems)

    def _owned(self) -> dict[str, tuple[Rule, Owner]]:
        rules: dict[str, tuple[Rule, Owner]] = {}
        for own in (True, False):
            for owner in self.owners:
                given = getattr(owner.module, "torch_rules", tuple)() if own else layer_rules(owner.module).values()
                for rule in given:
                    target = under(owner.path, rule.target)
                    rules.setdefault(target, (rule.under(_prefix(owner.torch_paths[0]), _prefix(owner.path)), owner))
        return rules


def rules_of(module: nnx.Module) -> list[Rule]:
    """One rule for each parameter of a module."""
    return Naming(module).rules()


def constants_of(module: nnx.Module) -> list[Constant]:
    """Tensors that checkpoints of this module may carry although they are no weights."""
    return Naming(module).constants()


def dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


def under(path: str, name: str) -> str:
    """The path of `name` below `path`."""
    return f"{path}.{name}" if path and name else path or name


def attribute(path: str) -> str:
    """The path in Python's words: "blocks.0.norm" is "blocks[0].norm"."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def _prefix(path: str) -> str:
    return f"{path}." if path else ""


def _below(name: str, path: str) -> str:
    return name.removeprefix(_prefix(path))
