"""Kernels for one device made to pass through every transformation of JAX: their own backward, and ours beyond it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .blockwise import blockwise_attention
from .linear import linear_call
from .mask_kinds import Padding, SlidingWindow
from .problem import Problem

Operands = tuple[jax.Array, jax.Array, jax.Array]


@dataclass(frozen=True)
class Kernel:
    """One formula, static: what a subclass computes for q [B, T, N, H], k [B, S, K, H], v [B, S, K, V].

    It has a backward pass, of first order and in reverse mode.
    """

    scale: float
    left: int | None
    right: int | None
    soft_cap: float | None

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array | None) -> jax.Array:
        """Output [B, T, N, V]; lengths int32 [B], 1 or more. Rows without a key are 0 or whatever will be replaced."""
        raise NotImplementedError

    def reference(self, operands: Operands, lengths: jax.Array | None) -> jax.Array:
        """The same in blocks, with derivatives of all orders."""
        mask: Any = SlidingWindow(self.left, self.right)
        mask = mask if lengths is None else mask & Padding(lengths)
        return blockwise_attention(Problem(*operands, self.scale, mask=mask, soft_cap=self.soft_cap)).output


def call_kernel(kernel: Kernel, problem: Problem, lengths: jax.Array | None) -> jax.Array:
    """The kernel's output for the operands of a call, [*B, T, N, V]."""
    q, k, v = (x.reshape(math.prod(problem.batch), *x.shape[-3:]) for x in (problem.q, problem.k, problem.v))
    output = _attend(kernel, (q, k, v), lengths)
    return output.reshape(*problem.batch, *output.shape[1:])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(kernel: Kernel, operands: Operands, lengths: jax.Array | None) -> jax.Array:
    operands, lengths = _mapped_alike(operands, lengths)
    return kernel(*operands, lengths)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend_with_pull(kernel: Kernel, operands: Operands, lengths: jax.Array | None) -> tuple[jax.Array, Any]:
    """(output, the kernel's backward pass, which is taken as a constant)."""
    operands, lengths = _mapped_alike(operands, lengths)
    return jax.vjp(lambda q, k, v: kernel(q, k, v, lengths), *operands)


@_attend.defjvp
def _tangent(kernel: Kernel, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    output, pull = _attend_with_pull(kernel, *primals)
    return output, linear_call(_Tangent(kernel), (*primals, pull), tangents[0])


@_attend_with_pull.defjvp
def _tangent_with_pull(kernel: Kernel, primals: Any, tangents: Any) -> tuple[Any, Any]:
    output, pull = _attend_with_pull(kernel, *primals)
    return (output, pull), (_tangent(kernel, primals, tangents)[1], jax.tree.map(_no_change, pull))


@dataclass(frozen=True)
class _Tangent:
    """Tangents of (q, k, v) → tangent of the output, and its transpose, the kernel's backward pass."""

    kernel: Kernel

    def apply(self, residuals: Any, operands: Any) -> Any:
        primals, lengths, _ = residuals
        return jax.jvp(lambda *given: self.kernel.reference(given, lengths), primals, operands)[1]

    reference = apply

    def transpose(self, residuals: Any, cotangents: Any) -> Any:
        return _backward(self.kernel, *residuals, cotangents)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _backward(kernel: Kernel, operands: Operands, lengths: Any, pull: Any, cotangent: jax.Array) -> Operands:
    """Cotangents of the operands, by the kernel; derivatives beyond it by the reference."""
    return pull(cotangent)


@_backward.defjvp
def _backward_tangent(kernel: Kernel, primals: Any, tangents: Any) -> tuple[Operands, Operands]:
    operands, lengths, _, cotangent = primals

    def by_reference(operands: Operands, cotangent: jax.Array) -> Operands:
        return jax.vjp(lambda *given: kernel.reference(given, lengths), *operands)[1](cotangent)

    _, change = jax.jvp(by_reference, (operands, cotangent), (tangents[0], tangents[3]))
    return _backward(kernel, *primals), change


def _no_change(leaf: jax.Array) -> Any:
    floating = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return jnp.zeros_like(leaf) if floating else np.zeros(leaf.shape, jax.dtypes.float0)


def _mapped_alike(operands: Operands, lengths: jax.Array | None) -> tuple[Operands, jax.Array | None]:
    """The same arrays; under vmap all have its axis if one has, since kernels may not take any other mixture."""
    everything = [*operands, *([] if lengths is None else [lengths])]
    bits = [lax.bitcast_convert_type(x.reshape(-1)[0], f"int{8 * x.dtype.itemsize}") for x in everything]
    always = sum((part & 0).astype(jnp.int32) for part in bits) == 0
    q, k, v, *rest = (jnp.where(always, x, jnp.zeros_like(x)) for x in everything)
    return (q, k, v), (rest[0] if rest else None)
