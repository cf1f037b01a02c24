"""Both sides' tensors under one name, also where a Flax module names its parts in its own way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from ..._tensors import to_numpy
from ...convert.apply import state_dict
from ...convert.build import live_tensors
from .flax_calls import modules_of


@dataclass(frozen=True)
class Weights:
    """Both sides' tensors under torch's names.

    Attributes:
        theirs: torch's state dict.
        ours: Flax's, of the names that it has.
        lonely: what one side has no partner for, "torch: name" or "flax: name".
    """

    theirs: dict[str, np.ndarray]
    ours: dict[str, np.ndarray]
    lonely: list[str]


def matched_weights(torch_module: Any, flax_module: nnx.Module, paired: Mapping[str, str]) -> Weights:
    """By the rules of the whole Flax module; what those don't name, by the rules of the paired part that holds it."""
    theirs = {name: to_numpy(tensor) for name, tensor in live_tensors(torch_module).items()}
    whole = state_dict(flax_module)
    ours, taken = {name: whole[name] for name in theirs if name in whole}, set(theirs)
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name in theirs:
        owner, _, leaf = name.rpartition(".")
        if name not in ours and owner in paired and paired[owner] != owner:
            part = parts.setdefault(owner, _state_of_part(flax_module, paired[owner]))
            if leaf in part:
                ours[name] = part[leaf]
                taken.add(f"{paired[owner]}.{leaf}")
    buffers = {name for name, _ in torch_module.named_buffers(remove_duplicate=False)}
    unpaired = [
        name for name in theirs if name not in ours and name.rpartition(".")[0] not in paired and name not in buffers
    ]
    lonely = [f"torch: {name}" for name in unpaired]
    return Weights(theirs, ours, lonely + [f"flax: {name}" for name in whole if name not in taken])


def _state_of_part(flax_module: nnx.Module, path: str) -> dict[str, np.ndarray]:
    part = modules_of(flax_module).get(path)
    return {} if part is None else state_dict(part)
