"""What the choice of an implementation depends on: backend, static shapes, dtypes and options, no values."""

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from .._typing import Size
from .bounds import Bounds, bounds_of
from .mask_arrays import is_traced
from .mask_ranges import is_int
from .problem import Problem


@dataclass(frozen=True)
class Facts:
    """One call of the operation and the device it runs on. That weights are asked for is none of them.

    Attributes:
        backend: "cpu", "gpu" or "tpu".
        batch: ∏ B, the number of examples; the sizes after it are N, K, T, S, H and V.
        dtypes: names of those of q, k and v.
        capability: the compute capability of a CUDA device.
        has_splash: whether the TPU kernels can be imported.
        left, right: bounds of the mask, i − left ≤ j ≤ i + right; None is unbounded.
        padded: whether the mask holds lengths of the examples.
        mask: what the mask is if it has no such bounds.
        bias, score_mod, soft_cap, dropout, precision: whether they are given.
        known_scale: whether the scale is known when the call is traced.
        statistics: whether row maximum and row sum are asked for.
    """

    backend: str
    batch: Size
    num_heads: int
    kv_heads: int
    length_q: Size
    length_kv: Size
    width: int
    value_width: int
    dtypes: tuple[str, str, str]
    capability: tuple[int, int] | None = None
    has_splash: bool = False
    left: int | None = None
    right: int | None = None
    padded: bool = False
    mask: str | None = None
    bias: bool = False
    score_mod: bool = False
    soft_cap: bool = False
    dropout: bool = False
    precision: bool = False
    known_scale: bool = True
    statistics: bool = False

    @property
    def starts_later(self) -> bool:
        """Whether the mask is a window that begins after the query itself, as one with an offset may."""
        return self.left is not None and self.left < 0

    @property
    def logits(self) -> Size:
        """How many there are: ∏ B · N · T · S; those of one example where the batch is symbolic."""
        examples = self.batch if isinstance(self.batch, int) else 1
        return examples * self.num_heads * self.length_q * self.length_kv

    @property
    def known_lengths(self) -> bool:
        """Whether T and S are numbers, as they are but in `jax.export` with symbolic lengths."""
        return is_int(self.length_q, self.length_kv)

    @property
    def known_sizes(self) -> bool:
        return self.known_lengths and is_int(self.batch)

    @property
    def logits_bytes(self) -> Size:
        return self.logits * (8 if "float64" in self.dtypes else 4)


def facts_of(problem: Problem, device: Any, *, statistics: bool = False, has_splash: bool = False) -> Facts:
    """The facts of a call on a device as `device_of` finds it."""
    found = bounds_of(problem.mask, problem.length_q, problem.length_kv)
    bounds, other = (Bounds(), found) if isinstance(found, str) else (found, None)
    return Facts(
        device.platform,
        math.prod(problem.batch),
        problem.num_heads,
        problem.kv_heads,
        problem.length_q,
        problem.length_kv,
        problem.q.shape[-1],
        problem.v.shape[-1],
        (problem.q.dtype.name, problem.k.dtype.name, problem.v.dtype.name),
        capability=compute_capability(device),
        has_splash=has_splash,
        left=bounds.left,
        right=bounds.right,
        padded=bool(bounds.lengths),
        mask=other,
        bias=problem.bias is not None,
        score_mod=problem.score_mod is not None,
        soft_cap=problem.soft_cap is not None,
        dropout=problem.drops,
        precision=problem.precision not in (None, lax.Precision.DEFAULT, "default"),
        known_scale=not is_traced(problem.scale),
        statistics=statistics,
    )


def device_of(array: Any) -> Any:
    """Where an array is, or where JAX puts what has no place yet: under jit, or described by its shape."""
    if isinstance(array, jax.Array) and not is_traced(array):
        return next(iter(array.devices()))
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue] -- made at run time
    return default if hasattr(default, "platform") else jax.devices(default)[0]


def compute_capability(device: Any) -> tuple[int, int] | None:
    """(9, 0) for "9.0"; None for a device that has none or names it otherwise."""
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
