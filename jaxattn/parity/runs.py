"""The runs of a comparison, and their results put side by side."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .arguments import Arguments, is_floating
from .flax_side import FlaxRun, run_flax
from .report import Row
from .rows import Compared, gradient_rows, output_rows
from .torch_side import TorchRun, run_torch
from .weights import shared_names

FLOAT64, FLOAT32 = jnp.dtype(jnp.float64), jnp.dtype(jnp.float32)


def low_dtype(flax_module: nnx.Module, arguments: Arguments) -> np.dtype:
    """The dtype of most parameters; without parameters that of the floating inputs, float32 for float64 ones."""
    counted: Counter[np.dtype] = Counter()
    for leaf in jax.tree.leaves(nnx.state(flax_module, nnx.Param)):
        if is_floating(leaf):
            counted[jnp.dtype(leaf.dtype)] += max(leaf.size, 1)
    if counted:
        return counted.most_common(1)[0][0]
    dtypes = [arguments.arrays[index].dtype for index in arguments.floating]
    return dtypes[0] if dtypes and dtypes[0] != FLOAT64 else FLOAT32


@dataclass(frozen=True)
class Pair:
    """Both modules and one call of them, rounded to `dtype`."""

    torch_module: Any
    flax_module: nnx.Module
    arguments: Arguments
    dtype: np.dtype
    seed: int

    def cotangent(self, index: int, shape: tuple[int, ...]) -> np.ndarray:
        """Of the output `index`: the same numbers in every run, exact in `dtype`."""
        drawn = np.random.default_rng([self.seed, index]).standard_normal(shape)
        return drawn.astype(self.dtype).astype(np.float64)

    def run_torch(self, dtype: np.dtype, watcher: Any = None) -> TorchRun:
        return run_torch(self.torch_module, self.arguments.at(dtype), dtype, self.cotangent, watcher=watcher)

    def run_flax(self, module: nnx.Module, dtype: np.dtype, truth: TorchRun) -> FlaxRun:
        shapes = truth.outputs.shapes
        cotangents = [self.cotangent(index, shape).astype(dtype) for index, shape in enumerate(shapes)]
        return run_flax(module, self.arguments.at(dtype), truth.outputs, cotangents)


@dataclass
class Runs:
    """The runs of a comparison; those at the low dtype are missing when that is float64."""

    pair: Pair
    truth: TorchRun
    ours: FlaxRun
    low_torch: TorchRun | None
    low_ours: FlaxRun | None
    float32_torch: TorchRun | None = None

    def rows(self) -> tuple[list[Row], list[Row]]:
        """(rows of the outputs, rows of the gradients)."""
        dtype, argument_names = self.pair.dtype, self.pair.arguments.names
        outputs = [
            self._compared(name, lambda run, index=index: _output(run, index))
            for index, name in enumerate(self.ours.names)
        ]
        gradients = [
            self._compared(argument_names[index], lambda run, index=index: run.argument_gradients[index])
            for index in self.truth.argument_gradients
        ]
        gradients += [
            self._compared(name, lambda run, name=name: run.parameter_gradients[name])
            for name in shared_names(self.truth.parameter_gradients, self.ours.parameter_gradients)
        ]
        return output_rows(outputs, dtype), gradient_rows(gradients, dtype)

    def _compared(self, what: str, take: Callable[[Any], np.ndarray]) -> Compared:
        optional = (self.low_torch, self.low_ours, self.float32_torch)
        return Compared(
            what, take(self.truth), take(self.ours), *(None if run is None else take(run) for run in optional)
        )


def _output(run: TorchRun | FlaxRun, index: int) -> np.ndarray:
    return run.outputs.arrays[index] if isinstance(run, TorchRun) else run.outputs[index]
