"""The blockwise implementation: linear memory, blocked keys left out, a backward of its own."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp

from .block import Fixed, Plan, Smooth, split_score
from .blockwise_forward import attend
from .dropout import keep_words
from .meshes import varying_like
from .problem import Problem, Result
from .schedule import Schedule
from .tuning import schedules


def blockwise_attention(problem: Problem, sizes: tuple[Schedule, Schedule] | None = None) -> Result:
    """The same formula as the dense implementation, over blocks of queries and keys.

    Memory is linear for values, jvp and gradients; derivatives of derivatives keep the weights.

    Args:
        problem: the call.
        sizes: of the blocks, in the forward and in the backward pass; None takes those of `tuning.py`.
    """
    batch, heads, length_q = problem.batch, problem.num_heads, problem.length_q
    forward, backward = sizes or schedules(problem)
    blocked, problem = _absorbing_bias(problem)
    plan = Plan(
        heads, problem.kv_heads, problem.soft_cap, problem.dropout_rate, problem.precision, forward, backward,
        finite_bias=blocked is not None,
    )  # fmt: skip
    output, row_max, row_sum = attend(plan, *_operands(problem))
    row_max, row_sum = (statistic.reshape(*batch, heads, length_q) for statistic in (row_max, row_sum))
    output = output.reshape(*batch, heads, length_q, problem.v.shape[-1])
    if blocked is not None:
        row_max = jnp.where(blocked, jnp.finfo(row_max.dtype).min, row_max)
        row_sum = jnp.where(blocked, 0.0, row_sum)
        output = jnp.where(blocked[..., None], 0.0, output)
    output = jnp.swapaxes(output, -2, -3)  # *B T N V
    if problem.empty_row != "zero" and not (problem.mask is None and problem.bias is None and not problem.score_mod):
        empty = jnp.swapaxes(row_sum == 0.0, -1, -2)[..., None]
        output = jnp.where(empty, _in_empty_rows(problem, sizes), output)
    return Result(output.astype(problem.q.dtype), row_max, row_sum)


def _absorbing_bias(problem: Problem) -> tuple[jax.Array | None, Problem]:
    """(which rows a bias blocks entirely [*B, N, T], the problem with the lowest finite number in the place of −∞).

    Any logit is absorbed by that number, so the weights are the same, and the kernel need not guard against rows
    without a key. None where a mask or a score function may block such a row together with the bias.
    """
    if problem.bias is None or problem.mask is not None or problem.score_mod is not None:
        return None, problem
    wide = problem.bias.dtype != jnp.float16
    bias = problem.bias if wide else problem.bias.astype(problem.dtype)
    blocked = jnp.all(bias == -jnp.inf, axis=-1) if bias.ndim else bias == -jnp.inf
    # Not by a maximum, which loses NaN where XLA fuses it.
    finite = jnp.where(bias == -jnp.inf, jnp.finfo(bias.dtype).min, bias)
    return jnp.broadcast_to(blocked, problem.logits_shape[:-1]), replace(problem, bias=finite)


def _operands(problem: Problem) -> tuple[Smooth, Fixed]:
    """Heads first, one axis for examples and key/value heads, in float32 at least; the scale is in the queries."""
    examples, kv_heads = math.prod(problem.batch), problem.kv_heads
    group = problem.num_heads // kv_heads

    def heads_first(array: jax.Array) -> jax.Array:
        return jnp.swapaxes(array, -2, -3).astype(problem.dtype).reshape(examples * kv_heads, -1, array.shape[-1])

    q = heads_first(problem.q) * jnp.asarray(problem.scale, problem.dtype)
    q = q.reshape(examples * kv_heads, group, problem.length_q, q.shape[-1])
    floating, rest = split_score(problem.score_mod)
    bias = None if problem.bias is None else problem.flatten(problem.bias)
    mask = None if problem.mask is None else problem.mask.flatten_batch(problem.batch)
    drawn = problem.drops and problem.dropout_mask is None
    words = keep_words(problem.dropout_rng) if drawn else None
    keep = problem.flatten(problem.dropout_mask) if problem.drops and not drawn else None
    smooth = Smooth(q, heads_first(problem.k), heads_first(problem.v), bias, floating)
    operands = smooth, Fixed(mask, keep, words, rest)
    return varying_like(operands, operands)


def _in_empty_rows(problem: Problem, sizes: tuple[Schedule, Schedule] | None) -> jax.Array:
    """What a row with nothing to attend gives, broadcastable to [*B, T, N, V]."""
    if problem.empty_row == "nan":
        return jnp.full((), jnp.nan, problem.dtype)
    if not problem.drops:
        mean = jnp.mean(problem.v.astype(problem.dtype), axis=-3, keepdims=True)  # *B 1 K V
        return jnp.repeat(mean, problem.num_heads // problem.kv_heads, axis=-2)
    nothing = jnp.zeros_like(problem.q)
    uniform = replace(problem, q=nothing, mask=None, bias=None, score_mod=None, soft_cap=None, empty_row="zero")
    return blockwise_attention(uniform, sizes).output
