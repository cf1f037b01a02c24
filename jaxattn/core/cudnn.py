"""The cuDNN implementation: fused attention on NVIDIA GPUs, through jax.nn."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .bounds import exact_bounds, fill_empty_rows, least_lengths, may_be_empty
from .facts import Facts
from .kernel import Kernel, call_kernel
from .problem import Problem, Result


def cudnn_refusal(facts: Facts) -> str | None:
    """Why cuDNN cannot compute the call exactly, or None."""
    capability, dtypes, width = facts.capability, set(facts.dtypes), facts.width
    widest = 256 if capability is not None and capability >= (9, 0) else 128
    refusals = (
        (facts.backend != "gpu", f"there is no GPU, it runs on the {facts.backend.upper()}"),
        (capability is None, "it needs a CUDA device"),
        (capability is not None and capability < (8, 0), f"it needs compute capability 8.0, got {capability}"),
        (
            len(dtypes) > 1 or not dtypes <= {"float16", "bfloat16"},
            f"q, k and v must all be float16 or all bfloat16, got {', '.join(facts.dtypes)}",
        ),
        (
            width % 8 != 0 or width > widest,
            f"the head width must be a multiple of 8, at most {widest} here, got {width}",
        ),
        (facts.value_width != width, f"values must be as wide as keys, got V = {facts.value_width}, H = {width}"),
        (
            facts.mask is not None,
            f"its masks are causal, sliding_window, padding and their `&`, got {facts.mask}",
        ),
        (
            facts.right not in (None, 0) or (facts.left is not None and facts.right is None),
            f"its masks end at the diagonal, as causal() and sliding_window(left, 0), got i - {facts.left} to "
            f"i + {facts.right}",
        ),
        (facts.starts_later, f"its windows hold the query itself, got one that starts at i + {-(facts.left or 0)}"),
        (facts.bias, "what it gives where `bias` holds -inf is not defined"),
        (facts.score_mod, "it takes no `score_mod`"),
        (facts.soft_cap, "it takes no `soft_cap`"),
        (facts.dropout, "it takes no `dropout_rng` or `dropout_mask`"),
        (facts.precision, "it takes no `precision`"),
        (not facts.known_scale, "its `scale` must be a number known outside jit"),
        (facts.statistics, "it gives no row maximum and row sum"),
        (facts.logits == 0, "there is no example, query or key"),
    )
    return next((reason for refused, reason in refusals if refused), None)


@dataclass(frozen=True)
class CudnnKernel(Kernel):
    """Attention as jax.nn computes it; "xla" computes the same arguments on any device, to check them."""

    implementation: Literal["cudnn", "xla"] = "cudnn"

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array | None) -> jax.Array:
        """cuDNN's answer in a row without a key is not defined: queries that a window leads beyond the last key are
        told to be padding.
        """
        arguments: dict[str, Any] = {"scale": self.scale, "is_causal": self.right == 0}
        if self.left is not None:
            arguments["local_window_size"] = (self.left, 0)
        if lengths is not None:
            queries = reached(lengths, self.left, q.shape[1])
            arguments |= {"query_seq_lengths": queries, "key_value_seq_lengths": lengths}
        return jax.nn.dot_product_attention(q, k, v, implementation=self.implementation, **arguments)


def cudnn_attention(problem: Problem, implementation: Literal["cudnn", "xla"] = "cudnn") -> Result:
    """Output alone."""
    length_q, length_kv = problem.length_q, problem.length_kv
    bounds = exact_bounds(problem)
    kernel = CudnnKernel(float(problem.scale), bounds.left, bounds.right, None, implementation)
    lengths = least_lengths(problem, bounds)
    if lengths is None and may_be_empty(bounds.left, bounds.right, length_q, length_kv):
        lengths = jnp.full((math.prod(problem.batch),), length_kv, jnp.int32)
    if lengths is None:
        return Result(call_kernel(kernel, problem, None), None, None)
    some = jnp.maximum(lengths, 1)
    beyond = jnp.arange(length_q) >= reached(some, bounds.left, length_q)[:, None]
    output = call_kernel(kernel, problem, some)
    return Result(fill_empty_rows(problem, output, beyond | (lengths == 0)[:, None]), None, None)


def reached(lengths: jax.Array, left: int | None, length_q: int) -> jax.Array:
    """[B]: how many queries have a key within their window, of `left` tokens, before the key `lengths`."""
    return jnp.minimum(lengths + (length_q if left is None else left), length_q)
