"""What a Flax module was told, against what its torch module says."""

import warnings
from collections.abc import Iterator
from typing import Any

from flax import nnx

from ..._checks import ConversionError
from .findings import Cause, Finding
from .flax_calls import modules_of
from .pairing import pair_modules

#: Attribute → name of the cause; other attributes are "configuration".
_CAUSES = {
    "epsilon": "epsilon",
    "eps": "epsilon",
    "num_heads": "number of heads",
    "nhead": "number of heads",
    "norm_first": "norm_first",
    "batch_first": "batch_first",
    "activation": "activation",
    "approximate": "activation",
    "name": "activation",
    "function": "activation",
    "use_bias": "bias dropped",
    "scale": "scale",
    "causal": "causal alignment",
}
#: Without influence on a value in float64 with dropout off.
_IRRELEVANT = {
    *("dtype", "param_dtype", "precision", "preferred_element_type", "promote_dtype", "rngs", "deterministic"),
    *("dropout", "dropout_rate", "rate", "p", "max_len", "rng_collection", "use_fast_variance", "dot_general"),
}


def configuration_findings(
    torch_module: Any, flax_module: nnx.Module, paired: dict[str, str]
) -> tuple[list[Finding], list[str]]:
    """(differences between `flax_module` and the twin that from_torch makes, paths without such a twin)."""
    findings, live = [], modules_of(flax_module)
    twins = dict(_twins(torch_module, ""))
    for root, twin in twins.items():
        part = torch_module.get_submodule(root)
        made = modules_of(twin)
        for below, twin_path in pair_modules(part, twin).items():
            path = ".".join(filter(None, (root, below)))
            if twin_path in made and paired.get(path) in live:
                findings += _differences(path, made[twin_path], live[paired[path]])
    return findings, [path for path, _ in torch_module.named_modules() if not _below_any(path, twins)]


def _below_any(path: str, roots: dict[str, Any]) -> bool:
    return any(not root or path == root or path.startswith(f"{root}.") for root in roots)


def _twins(torch_module: Any, path: str) -> Iterator[tuple[str, nnx.Module]]:
    """What from_torch makes of the module, or of the parts of one that it doesn't know."""
    from ...convert.torch_bridge import from_torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield path, from_torch(torch_module)
    except (NotImplementedError, ConversionError):
        for name, child in torch_module.named_children():
            yield from _twins(child, f"{path}.{name}" if path else name)


def _differences(path: str, twin: nnx.Module, live: nnx.Module) -> list[Finding]:
    if not isinstance(live, type(twin)):
        return []
    ours, theirs = dict(_settings(live)), dict(_settings(twin))
    found = []
    for name in theirs:
        if name in ours and not _equal(theirs[name], ours[name]):
            words = [_shown(side[name]) for side in (theirs, ours)]
            if words[0] == words[1]:
                words = [repr(side[name]) for side in (theirs, ours)]
            sentence = f"`{name}` is {words[0]} in torch's configuration, {words[1]} in Flax"
            found.append(Finding("configuration", path, Cause(_CAUSES.get(name, "configuration"), sentence)))
    return found


def _settings(module: nnx.Module) -> Iterator[tuple[str, Any]]:
    """Plain values and activation functions among the module's own attributes."""
    for name, value in vars(module).items():
        if name.startswith("_") or name in _IRRELEVANT or name.endswith("_init"):
            continue
        plain = value is None or isinstance(value, (bool, int, float, str))
        if plain or (callable(value) and not isinstance(value, (nnx.Module, nnx.Variable, type)) and name in _CAUSES):
            yield name, value


def _equal(theirs: Any, ours: Any) -> bool:
    if callable(theirs) and callable(ours):
        return theirs is ours or _shown(theirs) == _shown(ours)
    return theirs == ours


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
