"""softmax(q kᵀ · scale + bias) v: the public operation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._checks import (
    check_attention,
    check_broadcasts,
    check_choice,
    check_floating,
    check_mask_dtype,
    check_rate,
    check_selection,
)
from .._typing import ArrayLike, EmptyRow, Precision
from .dense import attention_logits
from .dispatch import IMPLEMENTATIONS, choose, run
from .dtypes import at_least_float32
from .mask_arrays import as_array, is_traced
from .mask_base import as_mask
from .problem import Problem, Result
from .record import record, recording
from .score_mod import as_score_mod
from .weights import all_weights, chosen_weights

#: (heads, rows): which of them, as indices; None is all.
WeightsFor = tuple[Sequence[int] | ArrayLike | None, Sequence[int] | ArrayLike | None]


class AttentionOutput(NamedTuple):
    """What attention returns; unpacks as `output, weights`, the weights None where nobody asked for them."""

    output: jax.Array
    weights: Any


class AttentionStats(NamedTuple):
    """output [*B, T, N, V], the row maximum m and the row sum l of exp(logits − m), both [*B, N, T]."""

    output: jax.Array
    row_max: jax.Array
    row_sum: jax.Array


def dot_product_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Any = None,
    bias: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    soft_cap: float | None = None,
    score_mod: Any = None,
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    dropout_mask: ArrayLike | None = None,
    return_weights: bool = False,
    weights_for: WeightsFor | None = None,
    implementation: str = "auto",
    precision: Precision = None,
) -> AttentionOutput:
    """output = dropout(softmax(q kᵀ · scale + bias, where mask)) v.

    K = N is multi-head, 1 < K < N grouped-query, K = 1 multi-query attention: query head n reads kv head n // (N/K).
    A blocked key has weight 0 and no influence on output and gradients, whatever it and its value hold, NaN and ∞ too;
    a bias of −inf hides the value alone, since NaN − ∞ is NaN. The kernels "cudnn" and "splash" don't promise this.

    Args:
        q: queries [*B, T, N, H]; any leading batch axes, none included.
        k: keys [*B, S, K, H].
        v: values [*B, S, K, V].
        mask: a mask of `jaxattn.masks`, or a boolean array, True = may attend, broadcastable from the right to
            [*B, N, T, S].
        bias: floating, added to the logits, broadcastable likewise; −inf blocks.
        scale: factor of the logits; None is 1/√H.
        soft_cap: c bounds the scaled logits to (−c, c) by c · tanh(logits / c), before bias and mask.
        score_mod: fn(logit, b, n, i, j) → logit for one element, after the soft cap and before bias and mask, or a pair
            (fn, arrays) with fn(logit, b, n, i, j, *arrays); b counts the examples, in C order over the batch axes.
            Arrays have gradients. Those that fn captures do too, at the price of a trace in each call outside jit.
        empty_row: weights of a query with nothing to attend: "zero" 0, "uniform" 1/S, "nan" NaN.
        dropout_rate: share of the weights that is dropped, in [0, 1); needs `dropout_rng` or `dropout_mask`.
        dropout_rng: JAX key that draws which weights are dropped, each element by itself; every implementation draws
            the same.
        dropout_mask: the weights that are kept (True), instead of drawing them; broadcastable to the weights.
        return_weights: also give the weights [*B, N, T, S], after softmax and before dropout. The output is the same.
        weights_for: (heads, rows), indices of the heads and queries whose weights are wanted, None for all: gives
            weights [*B, heads, rows, S] and computes no others.
        implementation: "dense", all logits at once, the one for symbolic lengths of `jax.export`; "blockwise", in
            linear memory; "decode", for a query or a few;
            "cudnn" and "splash" on their devices; or "auto", which picks one: see `explain_dispatch`.
        precision: of the matrix products, as `jax.lax.dot_general` takes it.

    Returns:
        AttentionOutput(output [*B, T, N, V], weights or None), both in q's dtype; softmax and sums run in float32 at
        least.

    Raises:
        ValueError: shapes that do not fit, an unknown `empty_row` or `implementation`, a rate outside [0, 1), a rate
            without randomness, `weights_for` out of range.
        TypeError: a mask that is not boolean, arrays that are not floating.
        NotImplementedError: an implementation that cannot do what is asked, or not on this device.

    Reference: Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762; grouped heads: Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245; soft cap: Gemma 2, https://arxiv.org/abs/2408.00118; score functions: Dong et al.
    2024, https://arxiv.org/abs/2412.05496; in blocks: Dao et al. 2022, https://arxiv.org/abs/2205.14135.
    """
    problem = prepare(
        q, k, v, mask=mask, bias=bias, scale=scale, soft_cap=soft_cap, score_mod=score_mod, empty_row=empty_row,
        dropout_rate=dropout_rate, dropout_rng=dropout_rng, dropout_mask=dropout_mask, precision=precision,
    )  # fmt: skip
    result = _run(problem, implementation)
    weights = None
    if weights_for is not None:
        weights = chosen_weights(problem, *_selection(problem, weights_for))
    elif return_weights or recording():
        weights = all_weights(problem) if result.weights is None else result.weights
    weights = None if weights is None else weights.astype(problem.q.dtype)
    if recording():
        _record(problem, weights)
    return AttentionOutput(result.output, weights if return_weights or weights_for is not None else None)


def dot_product_attention_stats(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Any = None,
    bias: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    soft_cap: float | None = None,
    score_mod: Any = None,
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    dropout_mask: ArrayLike | None = None,
    implementation: str = "auto",
    precision: Precision = None,
) -> AttentionStats:
    """dot_product_attention with the row maximum m and the row sum l = Σ exp(logits − m), to merge partial attentions.

    With (o₁, m₁, l₁) and (o₂, m₂, l₂) over two sets of keys and m = max(m₁, m₂), lₛ′ = lₛ exp(mₛ − m):
    the attention over both is (o₁ l₁′ + o₂ l₂′) / (l₁′ + l₂′), its row sum l₁′ + l₂′. lse = m + log l.

    m is a point of reference: its derivative is 0 and that of l is taken at fixed m, so that lse, merged outputs and
    all else that does not depend on the choice of m have their right derivatives. A row with nothing to attend has
    m = −∞ and l = 0, whatever `empty_row` makes of its output.

    Args:
        q: as for dot_product_attention, and so are all others.
        k: keys.
        v: values.
        mask: who may attend to whom.
        bias: added to the logits.
        scale: factor of the logits.
        soft_cap: bound of the logits.
        score_mod: function of the logits.
        empty_row: output of a query with nothing to attend.
        dropout_rate: share of the weights that is dropped; m and l are before dropout.
        dropout_rng: key that draws them.
        dropout_mask: those that are kept.
        implementation: which algorithm.
        precision: of the matrix products.

    Returns:
        AttentionStats(output in q's dtype, row_max, row_sum in float32 at least).

    Raises:
        ValueError: as dot_product_attention.
        TypeError: as dot_product_attention.
        NotImplementedError: an implementation that gives no statistics.

    Reference: Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867 (m and l); Liu et al. 2023, ring attention,
    https://arxiv.org/abs/2310.01889.
    """
    problem = prepare(
        q, k, v, mask=mask, bias=bias, scale=scale, soft_cap=soft_cap, score_mod=score_mod, empty_row=empty_row,
        dropout_rate=dropout_rate, dropout_rng=dropout_rng, dropout_mask=dropout_mask, precision=precision,
    )  # fmt: skip
    result = _run(problem, implementation, statistics=True)
    if recording():
        _record(problem, all_weights(problem).astype(problem.q.dtype))
    row_max = jnp.where(result.row_sum == 0.0, -jnp.inf, result.row_max)
    return AttentionStats(result.output, row_max, result.row_sum)


def prepare(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Any,
    bias: ArrayLike | None,
    scale: ArrayLike | None,
    soft_cap: float | None,
    score_mod: Any,
    empty_row: EmptyRow,
    dropout_rate: float,
    dropout_rng: jax.Array | None,
    dropout_mask: ArrayLike | None,
    precision: Precision,
) -> Problem:
    """The arguments of dot_product_attention, checked against each other."""
    q, k, v = _canonical(q), _canonical(k), _canonical(v)
    check_attention(q, k, v)
    check_choice("empty_row", empty_row, ("zero", "uniform", "nan"))
    check_rate("dropout_rate", dropout_rate)
    logits_shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    dtype = at_least_float32(q, k, v)
    mask = as_mask(mask)
    if mask is not None:
        mask.check(logits_shape)
    if bias is not None:
        bias = as_array(bias)
        check_floating("bias", bias)
        check_broadcasts("bias", bias, logits_shape)
    if dropout_mask is not None:
        dropout_mask = as_array(dropout_mask)
        check_mask_dtype(dropout_mask)
        check_broadcasts("dropout_mask", dropout_mask, logits_shape)
    if dropout_rate > 0.0 and dropout_rng is None and dropout_mask is None:
        raise ValueError(
            f"`dropout_rate` needs `dropout_rng` or `dropout_mask`, got dropout_rate={dropout_rate} alone."
        )
    return Problem(
        q,
        k,
        v,
        q.shape[-1] ** -0.5 if scale is None else scale,
        mask=mask,
        bias=bias,
        score_mod=as_score_mod(score_mod, dtype),
        dropout_rng=dropout_rng if dropout_mask is None else None,
        dropout_mask=dropout_mask,
        soft_cap=soft_cap,
        empty_row=empty_row,
        dropout_rate=dropout_rate,
        precision=precision,
    )


def _canonical(array: ArrayLike) -> jax.Array:
    """A JAX array; under vmap, too, where a tracer may hold NumPy's, which jit inside custom_jvp doesn't take."""
    return jnp.array(array, copy=True) if is_traced(array) else as_array(array)  # copies nothing once compiled


def _run(problem: Problem, implementation: str, *, statistics: bool = False) -> Result:
    check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    return run(choose(problem, implementation, statistics=statistics), problem)


def _selection(problem: Problem, weights_for: WeightsFor) -> tuple[jax.Array, jax.Array]:
    sizes = {"heads": problem.num_heads, "rows": problem.length_q}
    chosen = [
        jnp.arange(size) if indices is None else check_selection(f"weights_for ({name})", indices, size)
        for (name, size), indices in zip(sizes.items(), weights_for, strict=True)
    ]
    return chosen[0], chosen[1]


def _record(problem: Problem, weights: Any) -> None:
    """q, k, v, the logits before score function, bias and mask, and the weights."""
    logits = attention_logits(problem)
    for name, value in (("q", problem.q), ("k", problem.k), ("v", problem.v), ("logits", logits), ("weights", weights)):
        record(name, value)
