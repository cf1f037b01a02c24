"""Which submodule of one side is which of the other's."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from ...convert.naming import Naming
from ...layers import Dropout
from .flax_calls import modules_of
from .inside_pairs import inside_pairs


def pair_modules(torch_module: Any, flax_module: nnx.Module, pairs: Mapping[str, str] | None = None) -> dict[str, str]:
    """torch path → Flax path of every submodule that has a partner.

    By the map that from_torch recorded; what that doesn't have, by the weights it holds under other names; the rest by
    equal names below paired parents.

    Args:
        torch_module: the one side.
        flax_module: the other.
        pairs: torch path → Flax path, goes before anything else.

    Raises:
        ValueError: `pairs` names a module that doesn't exist.
    """
    found, pairs = modules_of(flax_module), dict(pairs or {})
    parts = dict(torch_module.named_modules())
    _check_pairs(pairs, list(parts), list(found))
    recorded, holders = recorded_twins(flax_module), _by_weights(list(parts), flax_module)
    paired = {"": ""}
    for path, part in parts.items():
        if path in pairs:
            paired[path] = pairs[path]
        elif recorded.get(path) in found:
            paired[path] = recorded[path]
        elif path in holders:
            paired[path] = holders[path]
        elif path:
            guess = _by_name(path, part, paired, parts, found)
            if guess is not None:
                paired[path] = guess
    return paired


def recorded_twins(flax_module: nnx.Module) -> dict[str, str]:
    """What from_torch recorded, torch path → Flax path; empty for a module made otherwise."""
    from ...convert.port import port_report

    report = port_report(flax_module)
    return {} if report is None else dict(report.twins)


def unpaired(torch_module: Any, flax_module: nnx.Module, paired: Mapping[str, str]) -> list[str]:
    """What is on one side only, "torch: path" or "flax: path"; containers and dropout apart: neither computes
    anything; and the projections inside an attention that is paired by its inside."""
    inside = inside_pairs(torch_module, flax_module, {})
    lonely = [
        f"torch: {path}"
        for path, part in torch_module.named_modules()
        if path not in paired and _computes(part) and path.rpartition(".")[0] not in inside
    ]
    taken, found = set(paired.values()), modules_of(flax_module)
    lonely += [
        f"torch: {path} (`{paired[path]}` in Flax holds parameters only)"
        for path, part in torch_module.named_modules()
        if path in paired and _computes(part) and not callable(found.get(paired[path]))
    ]
    return lonely + [
        f"flax: {path}"
        for path, part in found.items()
        if path not in taken and callable(part) and not isinstance(part, (nnx.Dropout, Dropout))
    ]


def _by_weights(parts: Sequence[str], flax_module: nnx.Module) -> dict[str, str]:
    """torch path → Flax path of what the rules give the same weights under another name."""
    naming = Naming(flax_module)
    rules = naming.rules()
    found = {theirs: ours for theirs, ours in naming.pairs() if theirs and theirs in parts}
    targets, sources = [(rule.target,) for rule in rules], [rule.sources for rule in rules]
    holders = {_below(owner.path, targets): owner.path for owner in naming.owners if callable(owner.module)}
    for path in reversed(parts):  # of several around the same weights the innermost
        weights = _below(path, sources) if path else None
        partner = holders.get(weights) if weights else None
        if partner is not None and path not in found and partner not in found.values():
            found[path] = partner
    return {theirs: ours for theirs, ours in found.items() if theirs != ours}


def _below(path: str, names: Sequence[Sequence[str]]) -> frozenset[int]:
    """Places of the names that are below a path."""
    return frozenset(i for i, group in enumerate(names) if all(name.startswith(f"{path}.") for name in group))


def _computes(part: Any) -> bool:
    import torch

    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    return not isinstance(part, (*containers, torch.nn.Dropout, torch.nn.Identity))


def _by_name(path: str, part: Any, paired: dict[str, str], parts: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The same name below the parent's partner; of an nn.Sequential, a place in a list `layers`."""
    import torch

    above, _, name = path.rpartition(".")
    if above not in paired:
        return None
    below = f"{paired[above]}." if paired[above] else ""
    guesses = [f"{below}{name}"]
    if isinstance(parts[above], torch.nn.Sequential):
        guesses.append(f"{below}layers.{[id(child) for child in parts[above].children()].index(id(part))}")
    return next((guess for guess in guesses if any(f"{real}.".startswith(f"{guess}.") for real in found)), None)


def _check_pairs(pairs: dict[str, str], torch_paths: list[str], flax_paths: list[str]) -> None:
    for side, given, known in (("torch", list(pairs), torch_paths), ("Flax", list(pairs.values()), flax_paths)):
        wrong = [path for path in given if path not in known]
        if wrong:
            raise ValueError(
                f"`pairs` must map torch paths to Flax paths, got {side} paths that don't exist: {wrong}; "
                f"there are {', '.join(repr(path) for path in known[:20])}."
            )
