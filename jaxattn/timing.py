"""Interleaved timing of a PyTorch module and its Flax twin, and no number before the two agree."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._tensors import to_torch
from .conditions import BusyElsewhere, cores
from .conditions import conditions as conditions
from .interleaved import FLAX_EAGER as FLAX_EAGER
from .interleaved import FLAX_JIT as FLAX_JIT
from .interleaved import TORCH_EAGER as TORCH_EAGER
from .interleaved import BenchReport as BenchReport
from .interleaved import Mode as Mode
from .interleaved import Progress as Progress
from .interleaved import Ratio as Ratio
from .interleaved import Timing as Timing
from .interleaved import compile_time as compile_time
from .interleaved import interleave as interleave
from .interleaved import ratio as ratio


class ParityFailure(ValueError):
    """The two sides don't compute the same thing, so their times aren't comparable; `report` says where they differ."""

    def __init__(self, module: str, report: Any):
        super().__init__(f"{module} failed its parity check, so no time is given.")
        self.report = report


def bench_pair(
    torch_module: Any,
    flax_module: Any,
    inputs: Sequence[np.ndarray],
    options: Mapping[str, Any] | None = None,
    *,
    peers: Mapping[str, Any] | None = None,
    jax_peers: Mapping[str, Callable[..., Any]] | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> BenchReport:
    """Check that the two modules agree, then time eager Flax, jitted Flax and eager torch in the same rounds.

    The jitted function takes the module as an argument. torch runs in inference mode, in evaluation mode, with as many
    threads as there are cores, and with its fused kernels as it ships them. Modules that give weights are timed twice:
    for their output alone, dropped inside the jit (`need_weights=False` where there is such an argument), and for both.

    Args:
        torch_module: the original.
        flax_module: its twin, with the same weights.
        inputs: positional arguments. The same array given twice stays the same array on both sides.
        options: keyword arguments; arrays are converted, other values go to both sides as they are.
        peers: further torch modules to time in the same rounds, by name.
        jax_peers: likewise, functions of the same arguments that take and give JAX arrays, timed as they are; that
            they compute the same is for the caller to check.
        progress: told what is running.
        **how: rounds, min_block_s, sleep_s, as for `interleave`.

    Raises:
        ParityFailure: they differ.
    """
    from .parity import compare

    options = dict(options or {})
    if progress:
        progress("parity", 0, 1)
    parity = compare(torch_module, flax_module, *inputs, **options)
    name = type(torch_module).__name__
    if not parity.ok:
        raise ParityFailure(name, parity)
    torch_modules = {TORCH_EAGER: torch_module, **(peers or {})}
    with _torch_as_measured(torch_modules.values()):
        elsewhere = BusyElsewhere()
        modes = tuple(
            _time_mode(
                label,
                torch_modules,
                flax_module,
                _Call(inputs, {**options, **extra}, pick),
                jax_peers or {},
                how=how,
                progress=progress,
            )
            for label, extra, pick in _choices(flax_module, _Call(inputs, options, lambda result: result))
        )
        facts = conditions(
            shapes=[list(array.shape) for array in inputs],
            dtype=_dtype(torch_module, inputs),
            rounds=modes[0].timings[TORCH_EAGER].n,
            jit="jax.jit with the module as an argument; each call waits for its result",
            torch="eager, inference mode, its fused kernels as shipped",
            spread="interquartile range over rounds",
            cores_busy_elsewhere=elsewhere.cores(),
        )
    return BenchReport(name, modes, parity, facts)


def _dtype(torch_module: Any, inputs: Sequence[np.ndarray]) -> str:
    parameter = next(iter(torch_module.parameters()), inputs[0])
    return str(parameter.dtype).removeprefix("torch.")


class _Call:
    """One call in both worlds: inputs as jax arrays and as tensors, shared ones shared, and which results to keep."""

    def __init__(self, inputs: Sequence[np.ndarray], options: Mapping[str, Any], pick: Callable[[Any], Any]):
        arrays = [value for value in options.values() if isinstance(value, np.ndarray)]
        unique = {id(array): array for array in [*inputs, *arrays]}
        self.pick = pick
        self.jax_arrays = [jnp.asarray(array) for array in unique.values()]
        self.tensors = [to_torch(array) for array in unique.values()]
        # Whether two inputs are one array decides which path attention takes, and is lost in a jit's arguments.
        where = {identity: index for index, identity in enumerate(unique)}
        self._positional = [where[id(array)] for array in inputs]
        self._options = {name: where.get(id(value)) for name, value in options.items()}
        self._plain = {name: value for name, value in options.items() if self._options[name] is None}

    def __call__(self, module: Any, arrays: Sequence[Any]) -> Any:
        given = {name: arrays[index] for name, index in self._options.items() if index is not None}
        return self.pick(module(*(arrays[index] for index in self._positional), **given, **self._plain))


def _choices(flax_module: Any, call: _Call) -> list[tuple[str, dict[str, Any], Callable[[Any], Any]]]:
    """(label, further keyword arguments, which results to keep)"""

    def first(result: Any) -> Any:
        return result if hasattr(result, "shape") else result[0]

    result = call(flax_module, call.jax_arrays)
    if getattr(result, "weights", None) is None:
        return [("output", {}, first)]
    switch = "need_weights" in inspect.signature(type(flax_module).__call__).parameters
    without, both = ({"need_weights": False}, {"need_weights": True}) if switch else ({}, {})
    return [("output", without, first), ("output and weights", both, tuple)]


def _time_mode(
    label: str,
    torch_modules: Mapping[str, Any],
    flax_module: Any,
    call: _Call,
    jax_peers: Mapping[str, Callable[..., Any]],
    *,
    how: Mapping[str, Any],
    progress: Progress | None,
) -> Mode:
    arrays, tensors = call.jax_arrays, call.tensors
    compile_s = compile_time(call, flax_module, arrays)
    jitted = jax.jit(call.__call__)
    candidates: dict[str, Callable[[], Any]] = {
        FLAX_EAGER: lambda: call(flax_module, arrays),
        FLAX_JIT: lambda: jitted(flax_module, arrays),
    }
    for name, function in jax_peers.items():
        candidates[name] = lambda function=function: call(function, arrays)
    for name, module in torch_modules.items():
        candidates[name] = lambda module=module: call(module, tensors)
    told = progress and (lambda name, done, total: progress(f"{label}: {name}", done, total))
    return Mode(label, compile_s, interleave(candidates, progress=told, **how))


@contextlib.contextmanager
def _torch_as_measured(modules: Iterable[Any]) -> Iterator[None]:
    """Inference mode, evaluation mode, one thread a core; put back afterwards."""
    import torch

    parts = [part for module in modules for part in module.modules()]
    training, threads = [part.training for part in parts], torch.get_num_threads()
    try:
        for part in parts:
            part.training = False
        torch.set_num_threads(cores())
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)
        for part, was in zip(parts, training, strict=True):
            part.training = was
