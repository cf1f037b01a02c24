"""The attention operations that are compared: ours, torch's, and others that are installed."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn
from jaxattn.conditions import cores
from jaxattn.interleaved import compile_time

from .conditions import announce
from .gate import check, exact_parts
from .grid import TINY, Point

OURS, DENSE, TORCH, JAX_NN, CUDNN = "jaxattn", "jaxattn dense", "torch SDPA", "jax.nn", "jax.nn cudnn"
FLAX, KERAS, TORCH_COMPILE = "flax.nnx", "keras", "torch.compile"
#: Peers that may be left out; both Flax's and Keras' operation end in jax.nn's.
FURTHER = (FLAX, KERAS, TORCH_COMPILE)
Attend = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Candidate:
    """One system at one point.

    Attributes:
        call: what is timed.
        results: runs it once: output, and with gradients dq, dk, dv, as NumPy in (B, T, N, H).
        compile_s: seconds to compile; None for what is not compiled.
    """

    call: Callable[[], Any]
    results: Callable[[], list[np.ndarray]]
    compile_s: float | None


def prepare(name: str, point: Point, arrays: Sequence[np.ndarray], *, backward: bool) -> Candidate:
    """The candidate of that name.

    Raises:
        ImportError: it is not installed.
    """
    if name in (TORCH, TORCH_COMPILE):
        return _torch(point, arrays, backward=backward, compiled=name == TORCH_COMPILE)
    function = jax_function(name, point, backward=backward)
    given = [jnp.asarray(array) for array in arrays[: 4 if backward else 3]]
    jitted = jax.jit(function)

    def results() -> list[np.ndarray]:
        return [np.asarray(array) for array in jax.tree.leaves(jitted(*given))]

    return Candidate(lambda: jitted(*given), results, compile_time(function, *given))


def jax_function(name: str, point: Point, *, backward: bool) -> Callable[..., Any]:
    """Of q, k, v: the output. With `backward`, of q, k, v, cotangent: output, dq, dk, dv."""
    attend = JAX_SYSTEMS[name](point)
    if not backward:
        return attend

    def forward_and_backward(q: Any, k: Any, v: Any, cotangent: Any) -> tuple[Any, ...]:
        output, pull = jax.vjp(attend, q, k, v)
        return output, *pull(cotangent)

    return forward_and_backward


def available(names: Sequence[str], *, backward: bool) -> list[str]:
    """Those of the peers that work here, by running each at a tiny point; one line for each that does not."""
    working = []
    for name in names:
        try:
            point = TINY[0]
            results = prepare(name, point, point.arrays(), backward=backward).results()
            check(name, results, exact_parts(point, point.arrays(), backward=backward))
            working.append(name)
        except Exception as error:  # whatever a foreign package raises, the others are still measured
            announce(f"{name} is left out: {reason(error)}")
    return working


def reason(error: Exception) -> str:
    """One line."""
    first = str(getattr(error, "report", error)).partition("\n")[0]
    return f"{type(error).__name__}: {first[:160]}"


def causal_mask(point: Point) -> Any:
    return jaxattn.masks.causal(offset=point.offset) if point.causal else None


def _ours(point: Point, implementation: str = "auto") -> Attend:
    mask = causal_mask(point)
    options: dict[str, Any] = {"mask": mask, "implementation": implementation}
    return lambda q, k, v: jaxattn.dot_product_attention(q, k, v, **options).output


def _jax_nn(point: Point, implementation: Literal["xla", "cudnn"] = "xla") -> Attend:
    return partial(jax.nn.dot_product_attention, is_causal=point.blocks, implementation=implementation)


def _flax(point: Point) -> Attend:
    from flax import nnx

    return partial(nnx.dot_product_attention, is_causal=point.blocks)


def _keras(point: Point) -> Attend:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras  # pyright: ignore[reportMissingImports] -- an optional peer

    if keras.backend.backend() != "jax":
        raise ImportError("Keras runs on another backend: set KERAS_BACKEND=jax")
    return partial(keras.ops.dot_product_attention, is_causal=point.blocks)


JAX_SYSTEMS: dict[str, Callable[[Point], Attend]] = {
    OURS: _ours,
    DENSE: partial(_ours, implementation="dense"),
    JAX_NN: _jax_nn,
    CUDNN: partial(_jax_nn, implementation="cudnn"),
    FLAX: _flax,
    KERAS: _keras,
}


def _torch(point: Point, arrays: Sequence[np.ndarray], *, backward: bool, compiled: bool) -> Candidate:
    """Heads are moved by `transpose(1, 2)`, as models do; the output is left as transposing back gives it."""
    import torch

    torch.set_num_threads(cores())
    options: dict[str, Any] = {"is_causal": point.blocks, "enable_gqa": point.heads != point.kv_heads}

    def eager(q: Any, k: Any, v: Any) -> Any:
        heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads_first, **options).transpose(1, 2)

    attend = torch.compile(eager, dynamic=False) if compiled else eager
    leaves: list[Any] = [torch.from_numpy(array) for array in arrays]
    cotangent = leaves.pop()
    for leaf in leaves:
        leaf.requires_grad_(backward)

    @torch.inference_mode()
    def forward() -> Any:
        return attend(*leaves)

    def forward_and_backward() -> Any:
        for leaf in leaves:
            leaf.grad = None
        output = attend(*leaves)
        output.backward(cotangent)
        return output

    call = forward_and_backward if backward else forward

    def results() -> list[np.ndarray]:
        output = call()
        return [tensor.detach().numpy() for tensor in (output, *(leaf.grad for leaf in leaves if backward))]

    start = time.perf_counter()
    if compiled:
        call()
    return Candidate(call, results, time.perf_counter() - start if compiled else None)
