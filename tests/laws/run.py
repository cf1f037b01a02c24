"""What the laws share: a case's module made once, called with NumPy and answering with NumPy."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxattn.parity.quick import quickly

from ..cases import Case, Input


@cache
def made(name: str) -> tuple[Any, Any, Any, Any]:
    """(case, Flax module, inputs, arrays) by case name."""
    from ..cases import CASES

    case = next(case for case in CASES if case.name == name)
    return case, case.flax(), *case.draw()


@cache
def one_of_each_class() -> frozenset[str]:
    """The first case of each module class: for laws whose failures show in the trace of every case, run on these."""
    from ..cases import CASES

    names: dict[type, str] = {}
    for case in CASES:
        names.setdefault(type(made(case.name)[1]), case.name)
    return frozenset(names.values())


def leaves(result: Any) -> list[Any]:
    """The arrays of a result in order: output, then weights when there are any."""
    return jax.tree.leaves(result)


def call(case: Case, module: nnx.Module, inputs, arrays) -> list[jax.Array]:
    return leaves(module(*inputs, **arrays, **case.flags))


@cache
def jitted(name: str):
    """(module, inputs, arrays) → leaves, compiled once for each structure of the arguments."""
    return jax.jit(partial(call, made(name)[0]))


@cache
def gradient(name: str):
    """Gradient of Σ output · cotangent with respect to the inputs."""
    case = made(name)[0]

    def loss(inputs, module, arrays, cotangent):
        return (call(case, module, inputs, arrays)[0] * cotangent).sum()

    return quickly(jax.grad(loss))


def values(inputs: tuple[Input, ...], arrays: dict[str, Input]):
    return tuple(value.array for value in inputs), {name: value.array for name, value in arrays.items()}


def axis_of(axes: str, name: str) -> int:
    return axes.split().index(name)


def along(axes: str, name: str, keep: np.ndarray) -> np.ndarray:
    """`keep` (one flag a position) shaped to multiply an array of these axes."""
    return keep.reshape([-1 if axis == name else 1 for axis in axes.split()])
