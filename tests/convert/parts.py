"""Layers of other packages against their twins, several in one comparison."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn._tensors import to_numpy
from jaxattn.convert.layout import same_bits

from ..inputs import generator


def class_of_transformers(model: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)


class Parts(nn.Module):
    """Every part on the input of its name."""

    def __init__(self, parts: dict[str, nn.Module]):
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, **inputs):
        return {name: part(inputs[name]) for name, part in self.parts.items()}


class FlaxParts(nnx.Module):
    def __init__(self, parts: dict[str, Any]):
        self.parts = nnx.Dict(parts)

    def __call__(self, **inputs):
        return {name: self.parts[name](inputs[name]) for name in inputs}


def check(parts: dict[str, nn.Module], shapes: Callable[[str], tuple[int, ...]]) -> None:
    """Outputs and gradients in float64 and float32; weights there and back."""
    module = Parts(parts).eval()
    twin = FlaxParts({name: jaxattn.from_torch(part) for name, part in parts.items()})
    inputs: dict[str, Any] = {
        name: generator(name).standard_normal(shapes(name)).astype(np.float32) * 2 for name in parts
    }
    jaxattn.parity.compare(module, twin, **inputs).assert_ok()
    theirs = {name: to_numpy(value).copy() for name, value in module.state_dict().items()}
    ours = jaxattn.state_dict(twin)
    assert ours.keys() == theirs.keys() and all(same_bits(ours[name], theirs[name]) for name in theirs)
    if theirs:
        jaxattn.load_state_dict(twin, {name: -value for name, value in theirs.items()})
        jaxattn.to_torch(twin, module)
    assert all(torch.equal(value, -torch.from_numpy(theirs[name])) for name, value in module.state_dict().items())
