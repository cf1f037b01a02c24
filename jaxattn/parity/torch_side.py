"""The oracle's runs: a copy of a live torch module, in any dtype."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._tensors import to_numpy, to_torch
from ..convert.torch_copy import Copier, DtypeOf
from .arguments import Arguments
from .dropout_plan import DropoutPlan
from .outputs import Flat, flatten_result
from .settings import oracle_settings

#: (index of an output, its shape) → the cotangent of that output.
Cotangents = Callable[[int, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class TorchRun:
    """Outputs as they came, gradients of each floating argument (by its index) and of each parameter, keep masks.

    `unused` are the arguments whose gradient is zero because the outputs don't depend on them at all; `buffers` are
    those of a call in training mode, after it.
    """

    outputs: Flat
    argument_gradients: dict[int, np.ndarray]
    parameter_gradients: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    unused: frozenset[int] = frozenset()
    buffers: dict[str, np.ndarray] = field(default_factory=dict)


def device_of(torch_module: Any) -> Any:
    """Where its first parameter lives, else the CPU."""
    import torch

    parameter = next(torch_module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def run_torch(
    torch_module: Any,
    arguments: Arguments,
    dtype: np.dtype,
    cotangents: Cotangents,
    *,
    watcher: Any = None,
    dropout: DropoutPlan | None = None,
    generators: dict[int, Any] | None = None,
) -> TorchRun:
    """Values and vector-Jacobian products of a copy of the module in `dtype`.

    Args:
        torch_module: the module.
        arguments: of its call, already in `dtype`.
        dtype: of the parameters; when they are of several dtypes and `dtype` is not float64, they keep them.
        cotangents: what the outputs are multiplied with, which makes the loss.
        watcher: a context in which the forward pass runs.
        dropout: training mode with these masks; None leaves the mode as it is.
        generators: of the module, as for `Copier`: a second run with the same dictionary goes on drawing.
    """
    import torch

    device = device_of(torch_module)
    with oracle_settings(device.type):
        module, args, kwargs, tensors = _copied(torch_module, arguments, dtype, generators)
        parameters = dict(module.named_parameters())
        for parameter in parameters.values():
            parameter.requires_grad_(parameter.is_floating_point())
        floating = {index: tensors[index] for index in arguments.floating}
        with watcher or nullcontext(), masked(module, dropout) as masks:
            flat = flatten_result(module(*args, **kwargs))
        wanted = {name: value for name, value in parameters.items() if value.requires_grad}
        variables = [*floating.values(), *wanted.values()]
        found = _gradients(flat, variables, cotangents)
        zeros = (torch.zeros_like(variable) if g is None else g for variable, g in zip(variables, found, strict=True))
        gradients = [to_numpy(gradient) for gradient in zeros]
    count = len(floating)
    return TorchRun(
        _in_numpy(flat),
        dict(zip(floating, gradients[:count], strict=True)),
        dict(zip(wanted, gradients[count:], strict=True)),
        dict(masks),
        frozenset(index for index, gradient in zip(floating, found, strict=False) if gradient is None),
        {} if dropout is None else {name: to_numpy(buffer) for name, buffer in module.named_buffers()},
    )


def run_again(
    torch_module: Any,
    arguments: Arguments,
    dtype: np.dtype,
    dropout: DropoutPlan | None = None,
    generators: dict[int, Any] | None = None,
) -> Flat:
    """The outputs alone, of the same call as in `run_torch`."""
    device = device_of(torch_module)
    with oracle_settings(device.type):
        module, args, kwargs, _ = _copied(torch_module, arguments, dtype, generators)
        with masked(module, dropout):
            return _in_numpy(flatten_result(module(*args, **kwargs)))


def masked(torch_module: Any, dropout: DropoutPlan | None) -> AbstractContextManager[dict[str, np.ndarray]]:
    """Training mode with the plan's dropout, or the mode as it is without a plan."""
    return nullcontext({}) if dropout is None else dropout.on_torch(torch_module)


def _copied(
    torch_module: Any, arguments: Arguments, dtype: np.dtype, generators: dict[int, Any] | None
) -> tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]:
    """(a copy of the module in `dtype`, positional and keyword arguments, the tensors in them)."""
    import torch

    copier = Copier(_dtypes(torch_module, getattr(torch, dtype.name)), generators)
    module, device = copier.copy(torch_module), device_of(torch_module)
    tensors = [to_torch(array).to(device) for array in arguments.arrays]
    for index in arguments.floating:
        tensors[index].requires_grad_()
    # Clones, because a module may write into its arguments (`x += positions`), which torch forbids for leaves.
    args, kwargs = arguments.call_with([tensor.clone() for tensor in tensors], copier.copy)
    return module, args, kwargs, tensors


def _dtypes(torch_module: Any, target: Any) -> DtypeOf:
    """`target`, but parameters of several dtypes and buffers keep theirs between dtypes that are not float64."""
    import torch

    parameters = [value for value in torch_module.parameters() if value.is_floating_point()]
    mixed = len({value.dtype for value in parameters}) > 1

    def dtype_of(tensor: Any, is_parameter: bool) -> Any:
        keep = (mixed or not is_parameter) and torch.float64 not in (tensor.dtype, target)
        return tensor.dtype if keep or not tensor.is_floating_point() else target

    return dtype_of


def _in_numpy(flat: Flat) -> Flat:
    return Flat(flat.named, flat.paths, tuple(to_numpy(output) for output in flat.arrays), flat.ignored)


def _gradients(flat: Flat, variables: list[Any], cotangents: Cotangents) -> Sequence[Any]:
    """∂ Σ output · cotangent / ∂ variable; None where the output doesn't depend on it."""
    import torch

    outputs = [(i, output) for i, output in enumerate(flat.arrays) if output.requires_grad]
    found: Any = [None] * len(variables)
    if outputs and variables:
        given = [to_torch(cotangents(i, tuple(output.shape))).to(output) for i, output in outputs]
        found = torch.autograd.grad([output for _, output in outputs], variables, given, allow_unused=True)
    return found
