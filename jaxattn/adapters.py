"""Attention functions that drop into Flax's and JAX's own APIs."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from ._checks import check_choice, check_integers, check_shape_in
from ._typing import ArrayLike, DType, EmptyRow, Precision
from .core import masks
from .core.dispatch import IMPLEMENTATIONS
from .core.dot_product import dot_product_attention, dot_product_attention_stats
from .core.dropout import draw_keep_mask
from .core.dtypes import at_least_float32
from .core.mask_arrays import from_nonzero
from .core.mask_base import as_leaf, as_mask


def as_attention_fn(
    *,
    implementation: str = "auto",
    empty_row: EmptyRow = "uniform",
    soft_cap: float | None = None,
    score_mod: Any = None,
    mask: Any = None,
) -> "AttentionFn":
    """dot_product_attention as a function that Flax's modules and callers of jax.nn.dot_product_attention accept.

    `nnx.MultiHeadAttention(…, attention_fn=as_attention_fn())`, the same for Linen's modules, and
    `as_attention_fn()(query, key, value, …)` with the arguments of jax.nn.dot_product_attention.

    The softmax runs in float32 at least, and in float64 for float64, which jax.nn narrows. A query whose keys are all
    blocked, some or all by a bias of −∞, gives `empty_row`; theirs gives the mean over the masked keys, or NaN.

    Args:
        implementation: as dot_product_attention takes it.
        empty_row: weights of a query with nothing to attend: "uniform", as theirs; "zero", which also costs less in
            training with dropout; or "nan".
        soft_cap: bound of the scaled logits.
        score_mod: function of the logits.
        mask: of `jaxattn.masks` or boolean, for every call, beside what the caller passes.

    Raises:
        ValueError: an unknown `implementation` or `empty_row`.
        TypeError: a mask that is not boolean.
    """
    check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    check_choice("empty_row", empty_row, ("zero", "uniform", "nan"))
    return AttentionFn(implementation, empty_row, soft_cap, score_mod, as_mask(mask))


@dataclass(frozen=True, eq=False)
class AttentionFn:
    """What `as_attention_fn` returns; equal for the same options (masks: one object), so equal models share traces."""

    implementation: str
    empty_row: EmptyRow
    soft_cap: float | None
    score_mod: Any
    mask: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionFn) and self._options() == other._options()

    def __hash__(self) -> int:
        return hash(self._options())

    def _options(self) -> tuple:
        return self.implementation, self.empty_row, self.soft_cap, id(self.score_mod), id(self.mask)

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike,
        value: ArrayLike,
        bias: ArrayLike | None = None,
        mask: Any = None,
        broadcast_dropout: bool = True,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: DType = None,
        precision: Precision = None,
        module: Any = None,
        *,
        scale: ArrayLike | None = None,
        is_causal: bool = False,
        query_seq_lengths: Any = None,
        key_value_seq_lengths: Any = None,
        local_window_size: int | tuple[int, int] | None = None,
        implementation: str | None = None,
        return_residual: bool = False,
        promote_dtype: Callable = dtypes.promote_dtype,
        force_fp32_for_softmax: bool = False,
        einsum_dot_general: Callable | None = None,
        qk_attn_weights_einsum: Callable | None = None,
        attn_weights_value_einsum: Callable | None = None,
    ) -> Any:
        """output = dropout(softmax(query keyᵀ · scale + bias, where mask)) value, under its callers' argument names.

        Args:
            query: [*B, T, N, H]; any leading batch axes, none included.
            key: [*B, S, K, H], K divides N.
            value: [*B, S, K, V].
            bias: floating, added to the logits, broadcastable from the right to [*B, N, T, S].
            mask: broadcastable likewise, non-zero = may attend; or a mask of `jaxattn.masks`.
            broadcast_dropout: one draw [T, S] for all examples and heads, the very one that Flax draws; else one for
                each weight, with other random numbers than Flax's.
            dropout_rng: key of the draw.
            dropout_rate: share of the weights that is dropped, in [0, 1).
            deterministic: no dropout.
            dtype: of the computation; None promotes query, key and value.
            precision: of the matrix products.
            module: of Flax NNX or Linen, sows `attention_weights`, before dropout.
            scale: factor of the logits; None is 1/√H.
            is_causal: j ≤ i, the first query aligned with the first key.
            query_seq_lengths: integers [*B] or (); the outputs of later queries are 0.
            key_value_seq_lengths: integers [*B] or (), from 0 to S; later keys are blocked.
            local_window_size: (left, right) in tokens, or one number for both: i − left ≤ j ≤ i + right.
            implementation: None for the option's, jax.nn's "xla" or "cudnn", or one of jaxattn's.
            return_residual: give (output, log Σ exp(logits) [*B, T, N]), the second without derivative, as in jax.nn.
            promote_dtype: fn((query, key, value), dtype=dtype) → the three, in one dtype.
            force_fp32_for_softmax: weights and output come in float32 at least, as Flax's then do; the softmax runs
                there either way.
            einsum_dot_general: None.
            qk_attn_weights_einsum: None.
            attn_weights_value_einsum: None.

        Raises:
            NotImplementedError: a matrix product of the caller's own; an implementation that cannot do what is asked.
            ValueError: as dot_product_attention; a float mask with negative values.
            TypeError: as dot_product_attention.
        """
        _refuse("einsum_dot_general", einsum_dot_general)
        _refuse("qk_attn_weights_einsum", qk_attn_weights_einsum)
        _refuse("attn_weights_value_einsum", attn_weights_value_einsum)
        q, k, v = promote_dtype((query, key, value), dtype=dtype)
        if force_fp32_for_softmax:
            q, k, v = (array.astype(at_least_float32(array)) for array in (q, k, v))
        single = q.ndim == 3
        q, k, v = (array[None] if array.ndim == 3 else array for array in (q, k, v))
        batch, length_q, length_kv = q.shape[:-3], q.shape[-3], k.shape[-3]
        rules = [self.mask, mask if mask is None or isinstance(mask, masks.Mask) else from_nonzero(mask)]
        if is_causal:
            rules.append(masks.causal())
        if (sides := local_window_size) is not None:
            rules.append(masks.sliding_window(*(sides if isinstance(sides, tuple) else (sides, sides))))
        if key_value_seq_lengths is not None:
            rules.append(masks.padding(_lengths("key_value_seq_lengths", key_value_seq_lengths, batch)))
        ended = None
        if query_seq_lengths is not None:
            lengths = jnp.asarray(_lengths("query_seq_lengths", query_seq_lengths, batch)).astype(jnp.int32)
            lengths = jnp.broadcast_to(lengths, batch)[..., None]
            ended = jnp.broadcast_to(jnp.arange(length_q, dtype=jnp.int32), (*batch, length_q)) >= lengths
            rules.append(masks.segments(ended.astype(jnp.int32), jnp.zeros(length_kv, jnp.int32)))
        present = [as_mask(rule) for rule in rules if rule is not None]
        rate = 0.0 if deterministic else dropout_rate
        keep = None
        if broadcast_dropout and rate > 0.0 and dropout_rng is not None:
            keep = draw_keep_mask(dropout_rng, rate, (length_q, length_kv))
        call: dict[str, Any] = dict(
            mask=functools.reduce(operator.and_, present) if present else None, bias=bias, scale=scale,
            soft_cap=self.soft_cap, score_mod=self.score_mod, empty_row=self.empty_row, dropout_rate=rate,
            dropout_rng=dropout_rng, dropout_mask=keep, implementation=self._named(implementation), precision=precision,
        )  # fmt: skip
        residual = None
        if return_residual:
            output, row_max, row_sum = dot_product_attention_stats(q, k, v, **call)
            nothing = -0.7 * jnp.finfo(jnp.float32).max if self.empty_row == "uniform" else -jnp.inf  # jax.nn's fill
            residual = jnp.where(row_sum == 0.0, nothing, row_max + jnp.log(row_sum))
            residual = jax.lax.stop_gradient(jnp.swapaxes(residual, -1, -2)).astype(k.dtype)  # *B T N
        if module is not None or not return_residual:
            output, weights = dot_product_attention(q, k, v, return_weights=module is not None, **call)
            if module is not None:
                collection = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
                module.sow(collection, "attention_weights", weights[0] if single else weights)
        if ended is not None:
            output = jnp.where(ended[..., None, None], 0.0, output)
        if single:
            output, residual = output[0], None if residual is None else residual[0]
        return output if residual is None else (output, residual)

    def _named(self, implementation: str | None) -> str:
        """What a call gets: jax.nn's "xla" is any but a device's kernel."""
        if implementation is None or (implementation == "xla" and self.implementation in ("dense", "blockwise")):
            return self.implementation
        return "dense" if implementation == "xla" else implementation


def _refuse(name: str, given: object) -> None:
    if given is not None:
        raise NotImplementedError(f"`{name}` must be None, got {given!r}; the matrix products are jaxattn's own.")


def _lengths(name: str, lengths: Any, batch: tuple[int, ...]) -> Any:
    check_integers(name, leaf := as_leaf(lengths))
    check_shape_in(name, leaf, (batch, ()), "[*B], one for each example, or one for all")
    return leaf
