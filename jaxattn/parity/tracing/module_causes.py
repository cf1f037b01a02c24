"""Mistakes tried on a copy of the torch module itself: which changed copy gives Flax's result?"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...convert.torch_copy import structural_copy
from .findings import Cause, either, explains
from .torch_calls import TorchCall, call_torch


def module_cause(call: TorchCall, calls: Sequence[TorchCall], ours: list[np.ndarray]) -> Cause | None:
    """The change of the torch module that makes its result of this call Flax's; None if no known one does.

    Args:
        call: torch's.
        calls: all of the run.
        ours: Flax's result for the same arguments.
    """
    fitting = []
    for name, sentence, changed in _changed(call, calls):
        try:
            results = call_torch(changed, call.arguments).arrays
        except (RuntimeError, TypeError, ValueError, AssertionError):  # the changed copy can't take these shapes
            continue
        if explains(ours, list(results), list(call.outputs.arrays)):
            fitting.append(Cause(name, sentence))
    return either(fitting)


def _changed(call: TorchCall, calls: Sequence[TorchCall]) -> Iterator[tuple[str, str, Any]]:
    module = call.module
    yield from _activations(module)
    for name in ("norm_first", "batch_first"):
        if isinstance(getattr(module, name, None), bool):
            yield name, f"Flax computes with {name}={not getattr(module, name)}", _with_flag(module, name)
    yield from _residuals(module)
    yield from _without_parts(call, calls)
    yield from _parameters(module)
    yield from _epsilons(module)


def _activation_functions() -> dict[str, Any]:
    import torch
    from torch.nn import functional as F

    return {
        "exact GELU": F.gelu,
        "GELU in its tanh approximation": lambda x: F.gelu(x, approximate="tanh"),
        "quick GELU": lambda x: x * torch.sigmoid(1.702 * x),
        "ReLU": F.relu,
        "SiLU": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "leaky ReLU": F.leaky_relu,
        "ELU": F.elu,
        "squared ReLU": lambda x: F.relu(x) ** 2,
    }


def _activations(module: Any) -> Iterator[tuple[str, str, Any]]:
    """The module's own activation, or each one below it, by another one."""
    import torch

    class Replaced(torch.nn.Module):
        def __init__(self, function: Any):
            super().__init__()
            self.function = function

        def forward(self, inputs: Any) -> Any:
            return self.function(inputs)

    kind = "torch.nn.modules.activation"
    below = [n for n, m in module.named_modules() if type(m).__module__ == kind and not _has_heads(m)]
    for words, function in _activation_functions().items():
        sentence = f"Flax's is {words}"
        if callable(getattr(module, "activation", None)):
            changed = structural_copy(module)
            if isinstance(module.activation, torch.nn.Module):
                changed.activation = Replaced(function)
            else:
                changed.activation = function
            yield "activation", sentence, changed
        for name in below:
            place = f" at `{name}`" if name else ""
            yield "activation", sentence + place, _put(module, name, Replaced(function))


def _has_heads(module: Any) -> bool:
    return hasattr(module, "num_heads")


def _put(module: Any, name: str, part: Any) -> Any:
    """A copy with `part` at the path `name`."""
    if not name:
        return part
    changed = structural_copy(module)
    above, _, last = name.rpartition(".")
    setattr(changed.get_submodule(above), last, part)
    return changed


def _with_flag(module: Any, name: str) -> Any:
    changed = structural_copy(module)
    flag = not getattr(module, name)
    for part in changed.modules():
        if isinstance(getattr(part, name, None), bool):
            setattr(part, name, flag)
    return changed


def _residuals(module: Any) -> Iterator[tuple[str, str, Any]]:
    """Without the addition around one block of torch's transformer layers."""
    if getattr(module, "norm_first", None) is None:
        return
    last = "norm3" if hasattr(module, "norm3") else "norm2"
    for name, norm, words in (
        ("_sa_block", "norm1", "self-attention"),
        ("_mha_block", "norm2", "cross-attention"),
        ("_ff_block", last, "the feed-forward block"),
    ):
        if hasattr(module, name):
            sentence = f"Flax doesn't add the input of {words} to its output"
            yield "residual missing", sentence, _without_residual(module, name, norm)


def _without_residual(module: Any, name: str, norm: str) -> Any:
    """A copy whose block gives block(x) − x, so that x + it is block(x); before a pre-norm x is that norm's input."""
    changed = structural_copy(module)
    block, held = getattr(changed, name), []
    if module.norm_first:
        getattr(changed, norm).register_forward_pre_hook(lambda part, args: held.append(args[0]))
    setattr(changed, name, lambda x, *rest, **named: block(x, *rest, **named) - (held.pop() if held else x))
    return changed


def _without_parts(call: TorchCall, calls: Sequence[TorchCall]) -> Iterator[tuple[str, str, Any]]:
    """Without one part that returns the shape it takes."""
    import torch

    below = f"{call.path}." if call.path else ""
    seen = set()
    for part in calls[call.begin :]:
        if not part.path.startswith(below) or part.path == call.path or part.path in seen:
            continue
        seen.add(part.path)
        arrays = part.arguments.arrays
        if len(arrays) == len(part.outputs.arrays) == 1 and arrays[0].shape == part.outputs.arrays[0].shape:
            name = part.path.removeprefix(below)
            if type(part.module).__name__ not in ("Dropout", "Identity"):
                yield "missing layer", f"Flax computes without `{name}`", _put(call.module, name, torch.nn.Identity())


def _parameters(module: Any) -> Iterator[tuple[str, str, Any]]:
    """Own parameters that aren't used, or are used transposed."""
    import torch

    for name, parameter in module.named_parameters(recurse=False):
        changed = structural_copy(module)
        neutral = torch.ones_like if name == "weight" and parameter.ndim == 1 else torch.zeros_like
        getattr(changed, name).data = neutral(parameter)
        yield "bias dropped" if "bias" in name else "missing weight", f"Flax computes without `{name}`", changed
        if parameter.ndim == 1 and name == "weight":
            changed = structural_copy(module)
            changed.weight.data = parameter + 1
            yield "norm weight", "Flax multiplies with 1 + `weight`", changed
        if parameter.ndim == 2 and parameter.shape[0] == parameter.shape[1]:
            changed = structural_copy(module)
            getattr(changed, name).data = parameter.T.clone()
            yield "transposed weight", f"Flax multiplies with `{name}` transposed", changed


def _epsilons(module: Any) -> Iterator[tuple[str, str, Any]]:
    norms = [name for name, part in module.named_modules() if isinstance(getattr(part, "eps", None), float)]
    for name in norms:
        for epsilon in (1e-6, 1e-5, 1e-12, 1e-8, 1e-3, 0.0):
            changed = structural_copy(module)
            changed.get_submodule(name).eps = epsilon
            yield "epsilon", f"Flax's epsilon at `{name}` is {epsilon:g}", changed
