"""One of torch.nn's modules and its twin: one traced program for each dtype, and many draws through it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jaxtyping
import numpy as np
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn.parity import DropoutPlan
from jaxattn.parity.arguments import Arguments
from jaxattn.parity.dropout_plan import dropout_arguments
from jaxattn.parity.flax_side import FlaxRun, in_float64
from jaxattn.parity.quick import quickly
from jaxattn.parity.rows import Compared, gradient_rows, output_rows
from jaxattn.parity.runs import FLOAT32, FLOAT64, Pair
from jaxattn.parity.torch_side import TorchRun

from ..inputs import generator, randomise

#: Draws of a signature that may exceed the rounding criterion in float32.
CHANCE = 2


@dataclass(frozen=True)
class Call:
    """What a module is called with: NumPy arrays and flags.

    Attributes:
        inputs: by position; an array that is there twice is one array on both sides.
        options: by keyword.
        empty: whether some query has nothing to attend to.
        constant: names of floating masks that torch replaces by its kernel's own, and which have no gradient there.
    """

    inputs: tuple[np.ndarray, ...]
    options: dict[str, Any]
    empty: bool = False
    constant: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """What decides the traced program: a module, and calls with arrays of one shape each.

    Attributes:
        name: the seed of its draws.
        build: makes torch's module.
        call: draws the arrays; the flag asks for queries with nothing to attend to, where there are masks.
        training: with dropout, by the same keep masks on both sides.
    """

    name: str
    build: Callable[[], nn.Module]
    call: Callable[[np.random.Generator, bool], Call]
    training: bool = False


def problems(signature: Signature, count: int, spoil: Callable[[Any], None] = lambda twin: None) -> list[str]:
    """What differs from torch in `count` draws, with new weights each: state dict, values and gradients.

    In float64 every draw must pass. In float32 two may fail: where one rounding decides, being four times as far off as
    torch is chance, about once in two hundred draws of so few numbers; a real loss of accuracy fails in most. In every
    third draw there are queries with nothing to attend to. `spoil` changes the twin when its weights are loaded.
    """
    oracle = randomise(signature.build(), signature.name)
    twin = jaxattn.from_torch(oracle)
    programs: dict[str, Callable[..., Any]] = {}
    found, rounding, failed = [], [], 0
    plan = DropoutPlan() if signature.training else None
    with one_thread():
        for number in range(count):
            name = f"{signature.name}, draw {number}"
            call = signature.call(generator(name), number % 3 == 2)
            with unannotated(number > 0):
                randomise(oracle, name).train(signature.training)
                new = _loading_problems(oracle, twin)
                spoil(twin)
                arguments = Arguments.of(oracle.forward, call.inputs, call.options)
                if not programs:
                    programs = {dtype.name: _program(twin, arguments, dtype) for dtype in (FLOAT64, FLOAT32)}
                new += _differences(Pair(oracle, twin, arguments, FLOAT32, number, plan), call, programs)
            low = [f"{name}: {problem}" for problem in new if problem.startswith("float32")]
            found += [f"{name}: {problem}" for problem in new if not problem.startswith("float32")]
            rounding += low
            failed += bool(low)
    return found + (rounding if failed > CHANCE else [])


@contextmanager
def unannotated(off: bool) -> Iterator[None]:
    """Annotations are executed in the first draw; in the others they would take most of the time."""
    was = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", off or was)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", was)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's threads wait by spinning, which costs more than these small products."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _loading_problems(oracle: nn.Module, twin: nnx.Module) -> list[str]:
    """Loads torch's weights into the twin, which must give them back bit for bit."""
    given = {name: tensor.detach().numpy() for name, tensor in oracle.state_dict().items()}
    jaxattn.load_state_dict(twin, given)
    again = jaxattn.state_dict(twin)
    if sorted(again) != sorted(given):
        return [f"state dict: {sorted(again)} for {sorted(given)}"]
    return [
        f"state dict: `{name}` is not given back"
        for name, array in given.items()
        if (array.dtype, array.shape, array.tobytes()) != (again[name].dtype, again[name].shape, again[name].tobytes())
    ]


def _differences(pair: Pair, call: Call, programs: dict[str, Callable[..., Any]]) -> list[str]:
    """What differs in one draw; each problem begins with its dtype."""
    truth, low = pair.run_torch(FLOAT64), pair.run_torch(FLOAT32)
    keep = None if pair.dropout is None else truth.masks
    ours, low_ours = (_run(programs[dtype.name], pair, dtype, truth, keep) for dtype in (FLOAT64, FLOAT32))
    runs = (truth, ours, low, low_ours)
    count = len(ours.outputs)
    outputs = [_compared(f"output {index}", [_outputs(run)[index] for run in runs]) for index in range(count)]
    gradients = [
        _compared(name, [run.argument_gradients[index] for run in runs])
        for index, name in enumerate(pair.arguments.names)
        if index in truth.argument_gradients and name not in call.constant
    ]
    gradients += [
        _compared(name, [run.parameter_gradients[name] for run in runs]) for name in truth.parameter_gradients
    ]
    rows = output_rows(outputs, FLOAT32)
    if all(np.isfinite(gradient.truth).all() for gradient in gradients):
        rows += gradient_rows(gradients, FLOAT32)
    elif not call.empty:
        return ["float64: torch's gradients are NaN without an empty row"]
    return [f"{problem} in {row.what}" for row in rows for problem in row.problems]


def _compared(name: str, arrays: Any) -> Compared:
    """A single number is compared in float64 only: by chance torch's float32 is exact, and it would be the measure."""
    return Compared(name, *(arrays if arrays[0].size > 1 else arrays[:2]))


def _outputs(run: TorchRun | FlaxRun) -> tuple[np.ndarray, ...]:
    return run.outputs.arrays if isinstance(run, TorchRun) else run.outputs


def _program(twin: nnx.Module, arguments: Arguments, dtype: np.dtype) -> Callable[..., Any]:
    """(parameters, arrays, cotangents, keep masks) → values and vector-Jacobian products.

    In float64, where only the algebra is checked, it is compiled fast rather than well, and so are stacks, whose layers
    are drawn by themselves as users compile them.
    """
    double = dtype == FLOAT64
    graphdef = nnx.split(in_float64(twin) if double else twin)[0]

    @(quickly if double or hasattr(twin, "layers") or hasattr(twin, "encoder") else jax.jit)
    def values_and_gradients(parameters, floating, fixed, cotangents, masks):
        def forward(parameters, floating):
            arrays = {**floating, **fixed}
            args, kwargs = arguments.call_with([arrays[index] for index in sorted(arrays)])
            dropping = {} if masks is None else dropout_arguments(twin, masks)
            return jax.tree.leaves(nnx.merge(graphdef, parameters)(*args, **kwargs, **dropping))

        outputs, pullback = jax.vjp(forward, parameters, floating)
        return outputs, *pullback(cotangents)

    return values_and_gradients


def _run(program: Callable[..., Any], pair: Pair, dtype: np.dtype, truth: TorchRun, masks: Any) -> FlaxRun:
    given = pair.arguments.at(dtype)
    floating = {index: given.arrays[index] for index in given.floating}
    fixed = {index: array for index, array in enumerate(given.arrays) if index not in floating}
    cotangents = [pair.cotangent(index, shape).astype(dtype) for index, shape in enumerate(truth.outputs.shapes)]
    parameters = jax.tree.map(lambda array: np.asarray(array).astype(dtype), nnx.state(pair.flax_module))
    with jax.enable_x64(dtype == FLOAT64), jax.default_matmul_precision("highest"):
        results = program(parameters, floating, fixed, cotangents, masks)
    outputs, of_parameters, of_arguments = jax.tree.map(np.asarray, results)
    state = jaxattn.state_dict(of_parameters, like=pair.flax_module)
    return FlaxRun(truth.outputs.paths, tuple(outputs), (), of_arguments, state)
