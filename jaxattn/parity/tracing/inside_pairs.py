"""Attention without an output projection (BERT's) against a Flax module that holds one: paired by what is inside."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flax import nnx

from ...convert.naming import Naming
from ..arguments import is_floating
from ..outputs import Flat
from .attention_inside import merge_heads
from .findings import same
from .flax_calls import FlaxCall
from .torch_calls import TorchCall


def inside_pairs(torch_module: Any, flax_module: nnx.Module, paired: Mapping[str, str]) -> dict[str, str]:
    """torch path → Flax path where a torch module holds exactly the weights that a Flax module holds by itself.

    That module holds others in its parts, or it would be paired already: the output projection.
    """
    rules = Naming(flax_module).rules()
    own: dict[str, set[str]] = {}
    for rule in rules:
        own.setdefault(rule.target.rpartition(".")[0], set()).update(rule.sources)
    around = [path for path in own if path and any(other.startswith(f"{path}.") for other in own)]
    free = {frozenset(own[path]): path for path in around if path not in paired.values()}
    found = {}
    for path, part in torch_module.named_modules():
        names = frozenset(f"{path}.{name}" for name, _ in part.named_parameters())
        if path and path not in paired and names and names in free:
            found[path] = free[names]
    return found


def inside_call(call: FlaxCall) -> FlaxCall | None:
    """The call as if it ended before its output projection: (weighted values, weights), as recorded inside."""
    weights, v = call.inside.get("weights"), call.inside.get("v")
    if weights is None or v is None:
        return None
    heads = np.moveaxis(v, -2, -3)
    merged = merge_heads(weights @ heads.repeat(weights.shape[-3] // heads.shape[-3], axis=-3))
    return replace(call, outputs=Flat(False, ("[0]", "[1]"), (merged, weights), ()))


def takes_the_same(call: TorchCall, mine: FlaxCall) -> bool:
    """Whether the first array that goes in is the same on both sides."""
    theirs = next((array for array in call.arguments.arrays if is_floating(array)), None)
    given = () if mine.given is None else (*mine.given[0], *mine.given[1].values())
    ours = next((np.asarray(value) for value in given if hasattr(value, "dtype") and is_floating(value)), None)
    return theirs is not None and ours is not None and same([ours], [theirs])
