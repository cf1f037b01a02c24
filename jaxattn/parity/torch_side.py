"""The oracle's runs: a live torch module, on copies of its parameters, in any dtype."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._tensors import to_numpy, to_torch
from .arguments import Arguments
from .dropout_plan import DropoutPlan
from .outputs import Flat, flatten_result

#: (index of an output, its shape) → the cotangent of that output.
Cotangents = Callable[[int, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class TorchRun:
    """Outputs as they came, gradients of each floating argument (by its index) and of each parameter, keep masks.

    `unused` are the arguments whose gradient is zero because the outputs don't depend on them at all.
    """

    outputs: Flat
    argument_gradients: dict[int, np.ndarray]
    parameter_gradients: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    unused: frozenset[int] = frozenset()


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
) -> TorchRun:
    """Values and vector-Jacobian products of the module in `dtype`; the module itself is left as it is.

    Args:
        torch_module: the module.
        arguments: of its call, already in `dtype`.
        dtype: of the parameters; when they are of several dtypes and `dtype` is not float64, they keep them.
        cotangents: what the outputs are multiplied with, which makes the loss.
        watcher: a context in which the forward pass runs.
        dropout: training mode with these masks; None leaves the mode as it is.
    """
    import torch

    target = getattr(torch, dtype.name)
    device = device_of(torch_module)
    with oracle_settings(device.type):
        parameters, buffers = _copies(torch_module, target)
        tensors = [to_torch(array).to(device) for array in arguments.arrays]
        floating = {index: tensors[index].requires_grad_() for index in arguments.floating}
        with watcher or nullcontext(), masked(torch_module, dropout) as masks:
            flat = _forward(torch_module, {**parameters, **buffers}, arguments, tensors)
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
    )


def run_again(torch_module: Any, arguments: Arguments, dtype: np.dtype, dropout: DropoutPlan | None = None) -> Flat:
    """The outputs alone, of the same call as in `run_torch`."""
    import torch

    device = device_of(torch_module)
    with oracle_settings(device.type), masked(torch_module, dropout):
        parameters, buffers = _copies(torch_module, getattr(torch, dtype.name))
        tensors = [to_torch(array).to(device) for array in arguments.arrays]
        return _in_numpy(_forward(torch_module, {**parameters, **buffers}, arguments, tensors))


def masked(torch_module: Any, dropout: DropoutPlan | None) -> AbstractContextManager[dict[str, np.ndarray]]:
    """Training mode with the plan's dropout, or the mode as it is without a plan."""
    return nullcontext({}) if dropout is None else dropout.on_torch(torch_module)


def _forward(torch_module: Any, state: dict[str, Any], arguments: Arguments, tensors: list[Any]) -> Flat:
    from torch.func import functional_call

    # Clones, because a module may write into its arguments (`x += positions`), which torch forbids for leaves.
    args, kwargs = arguments.call_with([tensor.clone() for tensor in tensors])
    return flatten_result(functional_call(torch_module, state, args, kwargs))


def _in_numpy(flat: Flat) -> Flat:
    return Flat(flat.named, flat.paths, tuple(to_numpy(output) for output in flat.arrays), flat.ignored)


@contextmanager
def oracle_settings(device_type: str) -> Iterator[None]:
    """Gradients on; attention fast path, autocast and reduced matmul precision off; restored afterwards."""
    import torch

    fast_path, precision = torch.backends.mha.get_fastpath_enabled(), torch.get_float32_matmul_precision()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device_type, enabled=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.set_float32_matmul_precision(precision)


def _copies(torch_module: Any, target: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers to run with; copies, since a forward pass may write into its buffers."""
    import torch

    parameters, buffers = dict(torch_module.named_parameters()), dict(torch_module.named_buffers())
    mixed = len({value.dtype for value in parameters.values() if value.is_floating_point()}) > 1

    def copy(value: Any, keep: bool) -> Any:
        kept = not value.is_floating_point() or (keep and torch.float64 not in (value.dtype, target))
        return value.detach().to(value.dtype if kept else target, copy=True)

    for name, value in parameters.items():
        parameters[name] = copy(value, mixed).requires_grad_(value.is_floating_point())
    return parameters, {name: copy(value, True) for name, value in buffers.items()}


def _gradients(flat: Flat, variables: list[Any], cotangents: Cotangents) -> Sequence[Any]:
    """∂ Σ output · cotangent / ∂ variable; None where the output doesn't depend on it."""
    import torch

    outputs = [(i, output) for i, output in enumerate(flat.arrays) if output.requires_grad]
    found: Any = [None] * len(variables)
    if outputs and variables:
        given = [to_torch(cotangents(i, tuple(output.shape))).to(output) for i, output in outputs]
        found = torch.autograd.grad([output for _, output in outputs], variables, given, allow_unused=True)
    return found
