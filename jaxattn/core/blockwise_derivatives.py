"""Derivatives of attention in blocks: the weights are computed again from q, k, m and l, never kept."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .block import Fixed, Plan, Smooth, head_of, put_rows, rows
from .index_functions import Span, add_window
from .meshes import varying_like
from .schedule import over_heads, over_keys, over_queries
from .softmax import softmax_parts
from .weighted import finite_part, weighted_sum

#: Logits of one block of whole rows.
_MOST_LOGITS = 2**20


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Residuals:
    """Inputs of the forward pass, and its results, which the derivatives do not have to compute again."""

    smooth: Smooth
    fixed: Fixed
    output: Any
    row_max: Any
    row_sum: Any

    @property
    def reference(self) -> jax.Array:
        """m, and NaN where l isn't finite: of the weights alone, which are looked at where a key is attended to."""
        return jnp.where(jnp.isfinite(self.row_sum), self.row_max, jnp.nan)

    @property
    def inverse_sum(self) -> jax.Array:
        """1 / l, 0 where a row is empty, 1 where l isn't finite."""
        known = jnp.isfinite(self.row_sum) & (self.row_sum != 0.0)
        return jnp.where(self.row_sum == 0.0, 0.0, 1.0 / jnp.where(known, self.row_sum, 1.0))


@dataclass(frozen=True)
class Tangent:
    """Tangents of (q, k, v, bias, …) → tangents of (output, l) at fixed m, and its transpose, the backward pass."""

    plan: Plan

    def apply(self, residuals: Residuals, tangents: Smooth) -> tuple[jax.Array, jax.Array]:
        return _forward_mode(self.plan, residuals, tangents)

    def transpose(self, residuals: Residuals, cotangents: tuple[jax.Array, jax.Array]) -> Smooth:
        return backward(self.plan, residuals, cotangents)

    def reference(self, residuals: Residuals, tangents: Smooth) -> tuple[jax.Array, jax.Array]:
        function = partial(_smooth_by_rows, self.plan, residuals.fixed)
        return jax.jvp(function, (residuals.smooth,), (tangents,))[1]


@partial(jax.jit, static_argnums=0)
def _forward_mode(plan: Plan, residuals: Residuals, tangents: Smooth) -> tuple[jax.Array, jax.Array]:
    """ȯ = Σⱼ p̃ⱼ (L̇ⱼ vⱼ + v̇ⱼ) − o c, l̇ = l c with c = Σⱼ pⱼ L̇ⱼ, p̃ the weights after dropout."""
    smooth, length_kv = residuals.smooth, residuals.smooth.k.shape[1]
    group, length_q = smooth.q.shape[1:3]

    def one_head(carry, inputs):
        x, q, k, v, d_q, d_k, d_v, output, reference, inverse, row_sum = inputs
        q, k, v = (finite_part(array) for array in (q, k, v))
        head = head_of(plan, residuals.fixed, x)

        def one_block(results, i, first):
            del first
            blocks = [rows(array, i) for array in (q, d_q, reference, inverse)]
            start = (jnp.zeros((group * i.size, v.shape[-1]), v.dtype), jnp.zeros(group * i.size, v.dtype))
            start = varying_like(start, q)

            def step(state, j, first_key, masked):
                state = start if state is None else state
                keys = tuple(_keys(array, j) for array in (k, v, d_k, d_v))
                return _tangent_step(head, smooth, tangents, blocks, keys, length_q, i, state, j, first_key, masked)

            values, change = over_keys(plan.forward, head.mask, i, length_kv, start, step)
            found = (values - rows(output, i) * change[:, None], rows(row_sum, i) * change)
            return tuple(put_rows(result, block, i) for result, block in zip(results, found, strict=True))

        empty = varying_like((jnp.zeros_like(output), jnp.zeros_like(row_sum)), q)
        return carry, over_queries(plan.forward, head.mask, length_q, empty, one_block)

    moved = (tangents.q, tangents.k, tangents.v)
    statistics = (residuals.output, residuals.reference, residuals.inverse_sum, residuals.row_sum)
    inputs = (jnp.arange(smooth.q.shape[0]), smooth.q, smooth.k, smooth.v, *moved, *statistics)
    return over_heads(one_head, (), inputs, plan.forward.heads)[1]


def _tangent_step(head, smooth, tangents, blocks, keys, length_q, i: Span, state, j: Span, first_key, masked):
    (q, d_q, reference, inverse), (k, v, d_k, d_v) = blocks, keys
    product = partial(jnp.matmul, precision=head.plan.precision)
    shape = (head.plan.group, i.size, j.size)

    def modified(products, bias, score):
        return head.logits(products.reshape(shape), bias, score, i, j)

    places = (product(q, k.T), head.bias(smooth, i, j), smooth.score)
    changes = (product(d_q, k.T) + product(q, d_k.T), head.bias(tangents, i, j), tangents.score)
    logits, d_logits = jax.jvp(modified, places, changes)
    allowed = head.allowed(i, j, first_key, masked)
    weights = exp_at_most_one(logits.reshape(q.shape[0], -1) - reference[:, None]) * inverse[:, None]
    if allowed is not None:
        weights = jnp.where(allowed, weights.reshape(shape), 0.0).reshape(weights.shape)
        d_logits = jnp.where(allowed, d_logits, 0.0)
    change = weights * _finite_where(weights, d_logits.reshape(weights.shape))
    values, total = state
    total = total + jnp.sum(change, axis=-1)
    kept = head.kept(length_q, i, j)
    if kept is not None:
        weights, change = ((part.reshape(shape) * kept).reshape(part.shape) for part in (weights, change))
    return values + product(change, v) + product(weights, d_v), total


def exp_at_most_one(below: jax.Array) -> jax.Array:
    """exp(L − m): rounded otherwise than in the forward pass a logit of 1e10 may exceed the row's maximum by 1000."""
    return jnp.exp(jnp.minimum(below, 0.0))


def _finite_where(weights: jax.Array, changes: jax.Array) -> jax.Array:
    """The changes, and 0 where the weight is 0: a logit of −∞ may come with a tangent that is not finite."""
    return jnp.where(weights == 0.0, 0.0, changes)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def backward(plan: Plan, residuals: Residuals, cotangents: tuple[jax.Array, jax.Array]) -> Smooth:
    """q̄, k̄, v̄ and the rest, from the cotangents of output and l.

    L̄ⱼ = pⱼ (keepⱼ ō·vⱼ − ō·o + l l̄), v̄ⱼ = p̃ⱼ ō, q̄ = L̄ⱼ kⱼ, k̄ⱼ = L̄ⱼ q.

    All is computed transposed, [keys, queries]: no product then has a transposed left operand, which costs twice the
    time on a CPU.
    """
    return _backward(plan, residuals, cotangents)


@backward.defjvp
def _second(plan: Plan, primals: Any, tangents: Any) -> tuple[Smooth, Smooth]:
    """Output, m and l are functions of the inputs, so their own tangents are not looked at."""
    (residuals, cotangents), (d_residuals, d_cotangents) = primals, tangents
    function = partial(_smooth_by_rows, plan, residuals.fixed)

    def again(smooth, cotangents):
        return jax.vjp(function, smooth)[1](cotangents)[0]

    moved = jax.jvp(again, (residuals.smooth, cotangents), (d_residuals.smooth, d_cotangents))[1]
    return backward(plan, residuals, cotangents), moved


@partial(jax.jit, static_argnums=0)
def _backward(plan: Plan, residuals: Residuals, cotangents: tuple[jax.Array, jax.Array]) -> Smooth:
    smooth, length_kv = residuals.smooth, residuals.smooth.k.shape[1]
    count, group, length_q, _ = smooth.q.shape
    d_output, d_sum = cotangents
    delta = jnp.sum(d_output * residuals.output, axis=-1) - d_sum * residuals.row_sum

    def one_head(carry, inputs):
        x, q, k, v, d_output, reference, delta = inputs
        q, k, v = (finite_part(array) for array in (q, k, v))
        head = head_of(plan, residuals.fixed, x)
        q, d_output = (array.reshape(group, length_q, -1) for array in (q, d_output))
        k_t = lax.optimization_barrier(k.T)  # here and below: or XLA multiplies by a transposed left operand after all

        def one_block(sums, i, first):
            start = (varying_like(jnp.zeros((q.shape[-1], group * i.size), q.dtype), q), *sums[1:])
            blocks = [rows(array, i) for array in (q, d_output, reference, delta)]
            if first is not None:
                fresh = jnp.tile(i.start + jnp.arange(i.size) >= first, group)
                blocks[1], blocks[3] = jnp.where(fresh[:, None], blocks[1], 0.0), jnp.where(fresh, blocks[3], 0.0)

            def step(state, j, first_key, masked):
                state = start if state is None else state
                keys = (_keys(k, j), lax.dynamic_slice_in_dim(k_t, j.start, j.size, axis=1), _keys(v, j))
                return _backward_step(head, smooth, blocks, keys, length_q, i, state, j, first_key, masked)

            d_q, *others = over_keys(plan.backward, head.mask, i, length_kv, start, step)
            return (_add_rows(sums[0], lax.optimization_barrier(d_q).T, i), *others)

        sums = (*varying_like((jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v)), q), *carry)
        d_q, d_k, d_v, *carry = over_queries(plan.backward, head.mask, length_q, sums, one_block)
        return tuple(carry), (d_q.reshape(group * length_q, -1), d_k, d_v)

    # Rows are divided by l here, where they are narrow, and not as weights.
    scaled = d_output * residuals.inverse_sum[..., None], residuals.reference, delta * residuals.inverse_sum
    flat = (array.reshape(count, group * length_q, -1) for array in (smooth.q, scaled[0]))
    q, d_output = flat
    inputs = (jnp.arange(count), q, smooth.k, smooth.v, d_output, *scaled[1:])
    parts = varying_like(jax.tree.map(jnp.zeros_like, (smooth.bias, smooth.score)), smooth.q)
    parts, (d_q, d_k, d_v) = over_heads(one_head, parts, inputs, plan.backward.heads)
    return Smooth(d_q.reshape(smooth.q.shape), d_k, d_v, *parts)


def _backward_step(head, smooth, blocks, keys, length_q, i: Span, state, j: Span, first_key, masked):
    """d q [H, G·i], d k, d v, and those of bias and score, with the keys j added to them; d_output and delta over l."""
    (q, d_output, reference, delta), (k, k_t, v) = blocks, keys
    d_q, d_k, d_v, d_bias, d_score = state
    product = partial(jnp.matmul, precision=head.plan.precision)
    shape = (j.size, head.plan.group, i.size)

    def logits(products, bias, score):
        found = head.logits(jnp.moveaxis(products.reshape(shape), 0, -1), bias, score, i, j)
        return jnp.moveaxis(found, -1, 0).reshape(products.shape)

    def kept_where(found):
        return found if allowed is None else jnp.where(allowed, found.reshape(shape), 0.0).reshape(found.shape)

    products = product(k, q.T)
    pull = None
    if not head.is_plain(smooth):
        products, pull = jax.vjp(logits, products, head.bias(smooth, i, j), smooth.score)
    allowed = head.allowed(i, j, first_key, masked)
    if allowed is not None:
        allowed = jnp.moveaxis(allowed, -1, 0)
    weights = kept_where(exp_at_most_one(products - reference[None]))  # times l
    d_weights = product(v, d_output.T)
    kept = head.kept(length_q, i, j)
    dropped = weights
    if kept is not None:
        kept = jnp.moveaxis(jnp.broadcast_to(kept, (head.plan.group, i.size, j.size)), -1, 0).reshape(weights.shape)
        dropped, d_weights = weights * kept, d_weights * kept
    d_logits = kept_where(weights * (d_weights - delta[None]))
    if pull is not None:
        d_logits, bias, score = pull(d_logits)
        d_logits = _finite_where(weights, d_logits)
        d_bias = None if d_bias is None else add_window(d_bias, bias, head.b, head.n, i, j)
        d_score = jax.tree.map(jnp.add, d_score, score)
    d_k, d_v = _add_keys(d_k, product(d_logits, q), j), _add_keys(d_v, product(dropped, d_output), j)
    return d_q + product(k_t, d_logits), d_k, d_v, d_bias, d_score


def _smooth_by_rows(plan: Plan, fixed: Fixed, smooth: Smooth) -> tuple[jax.Array, jax.Array]:
    """(output, l) of what is finite: what derivatives of derivatives are made of."""
    output, _, row_sum = by_rows(plan, fixed, replace(smooth, **smooth.finite_operands))
    return output, row_sum


def by_rows(plan: Plan, fixed: Fixed, smooth: Smooth) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(output, m, l) by plain operations, blocks of whole rows, whose weights are computed again in reverse mode."""
    length_q, keys = smooth.q.shape[2], Span(0, smooth.k.shape[1])

    def one_head(inputs):
        x, q, k, v = inputs
        head = head_of(plan, fixed, x)

        @partial(jax.checkpoint, static_argnums=1)
        def one_block(start, size):
            i = Span(start, size)
            shape = (plan.group, size, keys.size)
            products = jnp.matmul(rows(q, i), k.T, precision=plan.precision).reshape(shape)
            logits = head.logits(products, head.bias(smooth, i, keys), smooth.score, i, keys)
            allowed = head.allowed(i, keys, None, True)
            unnormalised, row_max, row_sum = softmax_parts(logits, allowed)
            kept = head.kept(length_q, i, keys)
            applied = unnormalised if kept is None else unnormalised * kept
            output = weighted_sum(jnp.matmul, plan.precision, applied.reshape(-1, keys.size), v)
            output = output.reshape(*shape[:2], -1) / jnp.where(row_sum == 0.0, 1.0, row_sum)[..., None]
            return output, row_max, row_sum

        size = min(plan.forward.queries, length_q, max(1, _MOST_LOGITS // (plan.group * keys.size)))
        count = length_q // size
        whole = lax.map(lambda number: one_block(number * size, size), jnp.arange(count))
        found = [jax.tree.map(_join, whole)]
        if length_q % size:
            found.append(one_block(count * size, length_q % size))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *found)

    return lax.map(one_head, (jnp.arange(smooth.q.shape[0]), smooth.q, smooth.k, smooth.v))


def _join(parts: jax.Array) -> jax.Array:
    """[blocks, G, size, ·] → [G, blocks · size, ·]."""
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1, *parts.shape[3:])


def _keys(array: jax.Array, j: Span) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, j.start, j.size)


def _add_keys(array: jax.Array, block: jax.Array, j: Span) -> jax.Array:
    if block.shape == array.shape:
        return array + block
    return lax.dynamic_update_slice_in_dim(array, _keys(array, j) + block, j.start, 0)


def _add_rows(array: jax.Array, block: jax.Array, i: Span) -> jax.Array:
    """`array` [G, T, ·] with a block [G·i, ·] added in its place."""
    return put_rows(array, rows(array, i) + block, i)
