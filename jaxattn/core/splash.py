"""The splash implementation: JAX's block-sparse attention for TPUs. The scaled queries are rounded to their dtype."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from .bounds import exact_bounds, fill_empty_rows, least_lengths, may_be_empty
from .facts import Facts
from .kernel import Kernel, call_kernel
from .problem import Problem, Result

#: Sizes of blocks, the largest that divides a length is taken.
BLOCKS = (512, 256, 128)


def splash_refusal(facts: Facts) -> str | None:
    """Why the kernels cannot compute the call exactly, or None."""
    lengths, widths, dtypes = (facts.length_q, facts.length_kv), (facts.width, facts.value_width), set(facts.dtypes)
    static_empty = may_be_empty(facts.left, facts.right, *lengths)
    refusals = (
        (facts.backend != "tpu", f"there is no TPU, it runs on the {facts.backend.upper()}"),
        (not facts.has_splash, "this JAX has no splash kernels"),
        (
            len(dtypes) > 1 or not dtypes <= {"float32", "bfloat16"},
            f"q, k and v must all be float32 or all bfloat16, got {', '.join(facts.dtypes)}",
        ),
        (facts.logits == 0, "there is no example, query or key"),
        (
            any(length % BLOCKS[-1] for length in lengths),
            f"lengths must be multiples of {BLOCKS[-1]}, got T = {lengths[0]}, S = {lengths[1]}",
        ),
        (
            any(width % 64 for width in widths),
            f"head widths must be multiples of 64, got H = {widths[0]}, V = {widths[1]}",
        ),
        (
            facts.mask is not None,
            f"its masks are causal, sliding_window, padding and their `&`, got {facts.mask}",
        ),
        (facts.starts_later, f"its windows hold the query itself, got one that starts at i + {-(facts.left or 0)}"),
        (static_empty or (facts.padded and facts.left is not None), "some queries may have nothing to attend to"),
        (facts.padded and facts.right is not None and facts.right < 0, "some queries may have nothing to attend to"),
        (facts.bias, "it takes no `bias`"),
        (facts.score_mod, "it takes no `score_mod`"),
        (facts.dropout, "it takes no `dropout_rng` or `dropout_mask`"),
        (facts.precision, "it takes no `precision`"),
        (facts.statistics, "it gives no row maximum and row sum"),
    )
    return next((reason for refused, reason in refusals if refused), None)


@dataclass(frozen=True)
class SplashKernel(Kernel):
    """JAX's kernels; the scale is in the queries."""

    kernels: Any
    interpret: bool

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array | None) -> jax.Array:
        examples, length_q, num_heads, _ = q.shape
        length_kv = k.shape[1]
        with jax.ensure_compile_time_eval():
            kernel = self.make(num_heads, length_q, length_kv)
        segments = None
        if lengths is not None:
            open_keys = (jnp.arange(length_kv) < lengths[:, None]).astype(jnp.int32)
            segments = self.kernels.SegmentIds(jnp.ones((examples, length_q), jnp.int32), open_keys)
        output = jax.vmap(kernel)(*(jnp.swapaxes(array, 1, 2) for array in (q, k, v)), segments)  # B N T V
        return jnp.swapaxes(output, 1, 2)  # B T N V

    def make(self, num_heads: int, length_q: int, length_kv: int) -> Any:
        """The function of q [N, T, H], k [K, S, H], v [K, S, V] and segments of one example."""
        shape, bounds = (length_q, length_kv), (self.left, self.right)
        mask = self.kernels.FullMask(shape) if bounds == (None, None) else self.kernels.LocalMask(shape, bounds, 0)
        queries, keys = (next(size for size in BLOCKS if length % size == 0) for length in shape)
        sizes = self.kernels.BlockSizes(
            block_q=queries, block_kv=keys, block_kv_compute=keys,
            block_q_dkv=queries, block_kv_dkv=keys, block_kv_dkv_compute=keys,
            block_q_dq=queries, block_kv_dq=keys,
        )  # fmt: skip
        masks = self.kernels.MultiHeadMask([mask] * num_heads)
        return self.kernels.make_splash_mha_single_device(
            masks, block_sizes=sizes, attn_logits_soft_cap=self.soft_cap, interpret=self.interpret
        )


def splash_attention(problem: Problem, kernels: Any, *, interpret: bool = False) -> Result:
    """Output alone.

    Args:
        problem: the call.
        kernels: JAX's module `splash_attention`.
        interpret: run the kernels' bodies as plain JAX, on any device.
    """
    bounds = exact_bounds(problem)
    kernel = SplashKernel(1.0, bounds.left, bounds.right, problem.soft_cap, kernels, interpret)
    scaled = replace(problem, q=(problem.q.astype(problem.dtype) * problem.scale).astype(problem.q.dtype))
    lengths = least_lengths(problem, bounds)
    if lengths is None:
        return Result(call_kernel(kernel, scaled, None), None, None)
    output = call_kernel(kernel, scaled, jnp.maximum(lengths, 1))
    return Result(fill_empty_rows(problem, output, (lengths == 0)[:, None]), None, None)
