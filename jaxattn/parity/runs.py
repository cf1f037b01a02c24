"""The runs of a comparison, and their results put side by side."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._checks import listed
from ..layers import is_parameter
from .arguments import Arguments, is_floating, nan_count
from .conditioning import DRAWS, moved_arguments, moved_module, movement
from .dropout_plan import DropoutPlan
from .flax_side import FlaxRun, run_flax
from .limits import check_repeatable
from .report import Row
from .rows import Compared, gradient_rows, output_rows
from .torch_side import TorchRun, run_again, run_torch
from .weights import shared_names
from .widening import Widened

#: A word of the cotangents' seeds.
COTANGENT = 0xC07A
FLOAT64, FLOAT32 = jnp.dtype(jnp.float64), jnp.dtype(jnp.float32)


def low_dtype(flax_module: nnx.Module, arguments: Arguments) -> np.dtype:
    """The dtype of most parameters; without parameters that of the floating inputs, float32 for float64 ones."""
    counted: Counter[np.dtype] = Counter()
    for leaf in jax.tree.leaves(nnx.state(flax_module, is_parameter)):
        if is_floating(leaf):
            counted[jnp.dtype(leaf.dtype)] += max(leaf.size, 1)
    if counted:
        return counted.most_common(1)[0][0]
    dtypes = [arguments.arrays[index].dtype for index in arguments.floating]
    return dtypes[0] if dtypes and dtypes[0] != FLOAT64 else FLOAT32


@dataclass(frozen=True)
class Pair:
    """Both modules and one call of them, rounded to `dtype`; with a plan, in training mode."""

    torch_module: Any
    flax_module: nnx.Module
    arguments: Arguments
    dtype: np.dtype
    seed: int
    dropout: DropoutPlan | None = None
    generators: dict[int, Any] = field(default_factory=dict)

    def cotangent(self, index: int, shape: tuple[int, ...]) -> np.ndarray:
        """Of the output `index`: the same numbers in every run, exact in `dtype`.

        The last word keeps them apart from inputs drawn with the same seed: NumPy's seeds `s` and `[s, 0]` are one, and
        an output's cotangent that equals the input hides the gradient of a norm.
        """
        drawn = np.random.default_rng([self.seed, index, COTANGENT]).standard_normal(shape)
        return drawn.astype(self.dtype).astype(np.float64)

    def run_torch(self, dtype: np.dtype, watcher: Any = None) -> TorchRun:
        options = {"watcher": watcher, "dropout": self.dropout, "generators": self.generators}
        return run_torch(self.torch_module, self.arguments.at(dtype), dtype, self.cotangent, **options)

    def run_moved(self, seed: int, watcher: Any = None) -> TorchRun:
        """torch in float64 with inputs and parameters moved by one ulp, in directions drawn from `seed`."""
        given = moved_arguments(self.arguments.at(FLOAT64), seed)
        module = moved_module(self.torch_module, seed)
        return run_torch(module, given, FLOAT64, self.cotangent, watcher=watcher, dropout=self.dropout)

    def run_widened(self) -> TorchRun:
        """torch in float64, its own casts to float32 left out."""
        return self.run_torch(FLOAT64, watcher=Widened())

    def check_repeatable(self, truth: TorchRun) -> None:
        """torch gives the truth twice."""
        again = run_again(self.torch_module, self.arguments.at(FLOAT64), FLOAT64, self.dropout, self.generators)
        check_repeatable(truth.outputs, again)

    def run_flax(self, module: nnx.Module, dtype: np.dtype, truth: TorchRun) -> FlaxRun:
        shapes = truth.outputs.shapes
        cotangents = [self.cotangent(index, shape).astype(dtype) for index, shape in enumerate(shapes)]
        masks = None if self.dropout is None else truth.masks
        given = self.arguments.at(dtype)
        return run_flax(module, given, truth.outputs, cotangents, masks=masks, quick=dtype == FLOAT64)


@dataclass
class Runs:
    """The runs of a comparison; those at the low dtype are missing when that is float64.

    `moved` are torch's float64 runs from places one ulp away, where the plain limit isn't kept; `widened` is torch's
    float64 run without its casts to float32, where those limit the truth.
    """

    pair: Pair
    truth: TorchRun
    ours: FlaxRun
    low_torch: TorchRun | None
    low_ours: FlaxRun | None
    float32_torch: TorchRun | None = None
    moved: tuple[TorchRun, ...] = ()
    widened: TorchRun | None = None

    def move(self) -> None:
        """Measure what torch's own result moves by; a cast to float32 would make a step of float32 of each move."""
        seeds = [self.pair.seed + draw for draw in range(DRAWS)]
        self.moved = tuple(self.pair.run_moved(seed, None if self.widened is None else Widened()) for seed in seeds)

    def rows(self) -> tuple[list[Row], list[Row]]:
        """(rows of the outputs, rows of the gradients)."""
        dtype, argument_names = self.pair.dtype, self.pair.arguments.names
        outputs = [
            self._compared(name, lambda run, index=index: _output(run, index))
            for index, name in enumerate(self.ours.names)
        ]
        outputs += [
            self._compared(f"{name} after the call", lambda run, name=name: run.buffers[name])
            for name in shared_names(self.truth.buffers, self.ours.buffers)
        ]
        gradients = [
            self._compared(argument_names[index], lambda run, index=index: run.argument_gradients[index])
            for index in self.truth.argument_gradients
            if index not in self.unused
        ]
        gradients += [
            self._compared(name, lambda run, name=name: run.parameter_gradients[name])
            for name in shared_names(self.truth.parameter_gradients, self.ours.parameter_gradients)
        ]
        return output_rows(outputs, dtype), gradient_rows(gradients, dtype)

    @property
    def unused(self) -> dict[int, str]:
        """Arguments without a gradient in torch that have one in Flax: torch reads a mask, then computes without it."""
        names, ours = self.pair.arguments.names, self.ours.argument_gradients
        return {index: names[index] for index in sorted(self.truth.unused) if ours[index].any()}

    def input_rows(self, given: Arguments) -> list[Row]:
        """One row if an input holds NaN; it fails if that reaches what is compared, since NaN proves nothing."""
        counted = zip(given.names, given.arrays, strict=True)
        found = [f"`{name}` holds NaN at {nan_count(a)} of {a.size} places" for name, a in counted if nan_count(a)]
        if not found:
            return []
        truth, names = self.truth, self.pair.arguments.names
        compared = [*zip(self.ours.names, truth.outputs.arrays, strict=True)]
        compared += [(f"gradient of {names[index]}", array) for index, array in truth.argument_gradients.items()]
        compared += [(f"gradient of {name}", array) for name, array in truth.parameter_gradients.items()]
        reached = [f"`{name}`" for name, array in compared if nan_count(array)]
        problems = (f"{'; '.join(found)}; it reaches {listed(reached)} in torch: give numbers",) if reached else ()
        return [Row("NaN in the inputs", "input", (len(found),), problems=problems)]

    def _compared(self, what: str, take: Callable[[Any], np.ndarray]) -> Compared:
        optional = (self.low_torch, self.low_ours, self.float32_torch, self.widened)
        truth = take(self.truth)
        still = truth if self.widened is None else take(self.widened)
        return Compared(
            what,
            truth,
            take(self.ours),
            *(None if run is None else take(run) for run in optional),
            movement=movement(still, map(take, self.moved)) if self.moved and is_floating(truth) else 0.0,
        )


def _output(run: TorchRun | FlaxRun, index: int) -> np.ndarray:
    return run.outputs.arrays[index] if isinstance(run, TorchRun) else run.outputs[index]
