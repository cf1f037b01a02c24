"""Every call that a torch module makes of its submodules: what went in and what came out."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._tensors import to_numpy, to_torch
from ...convert.torch_copy import floating_as, structural_copy
from ..arguments import Arguments
from ..outputs import Flat, flatten_result
from ..settings import oracle_settings
from ..torch_side import device_of


@dataclass(frozen=True)
class TorchCall:
    """One call of one submodule.

    Attributes:
        path: "" is the traced module itself.
        call: 0, 1, … of a module that is called again.
        module: what was called, of the copy that ran.
        arguments: of the call, as they were before it.
        outputs: what it returned.
        begin: index, among all calls, of the first one made inside this one.
    """

    path: str
    call: int
    module: Any
    arguments: Arguments
    outputs: Flat
    begin: int


def copy_in(torch_module: Any, dtype: np.dtype | None) -> Any:
    """A copy whose floating parameters and buffers are of `dtype`; None leaves them as they are."""
    return structural_copy(torch_module, None if dtype is None else floating_as(dtype.name))


def call_torch(module: Any, arguments: Arguments, *, watcher: Any = None) -> Flat:
    """One call, without gradients and off the fast path; the arrays that came out, in NumPy."""
    import torch

    device = device_of(module)
    with oracle_settings(device.type), torch.no_grad():
        args, kwargs = arguments.call_with([to_torch(array).to(device) for array in arguments.arrays])
        with watcher or nullcontext():
            result = module(*args, **kwargs)
        return in_numpy(flatten_result(result))


def in_numpy(flat: Flat) -> Flat:
    return Flat(flat.named, flat.paths, tuple(np.array(to_numpy(array)) for array in flat.arrays), flat.ignored)


def calls_of(module: Any, arguments: Arguments, *, watcher: Any = None) -> list[TorchCall]:
    """Call `module` and keep every call inside it, in the order in which they were finished; the last is its own.

    Args:
        module: a copy that may get hooks, which are removed afterwards.
        arguments: of its call, in its dtype.
        watcher: a context in which the forward pass runs.
    """
    calls: list[TorchCall] = []
    running: list[tuple[Arguments, int]] = []
    counts: dict[str, int] = {}

    def enter(part: Any, args: Any, kwargs: Any) -> None:
        running.append((Arguments.of(part.forward, args, kwargs), len(calls)))

    def leave(path: str) -> Callable[..., None]:
        def hook(part: Any, args: Any, kwargs: Any, result: Any) -> None:
            del args, kwargs
            given, begin = running.pop()
            call = counts[path] = counts.get(path, -1) + 1
            calls.append(TorchCall(path, call, part, given, in_numpy(flatten_result(result)), begin))

        return hook

    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(part.register_forward_hook(leave(path), with_kwargs=True))
    try:
        call_torch(module, arguments, watcher=watcher)
    finally:
        for handle in handles:
            handle.remove()
    return calls
