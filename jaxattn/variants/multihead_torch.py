"""torch.nn.MultiheadAttention's contract."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_divisible, check_features, check_length, check_rate, check_same_batch, check_sizes
from .._typing import DType, EmptyRow, Precision
from ..convert.registry import register
from ..core.dot_product import AttentionOutput, dot_product_attention
from ..core.dropout import draw_attention_keep_mask, dropout
from ..core.heads import merge_heads, split_heads
from ..core.index_functions import with_rank
from ..core.mask_arrays import TensorLike, as_array, from_torch_masks
from ..core.projection import project
from ..layers import dropout_key, linear, parameter

zeros = nnx.initializers.zeros
_xavier_uniform = nnx.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=-1, out_axis=-2)
_xavier_normal = nnx.initializers.variance_scaling(1.0, "fan_avg", "normal", in_axis=-1, out_axis=-2)


def _configuration(torch_module, build):
    del build
    return {
        "embed_dim": torch_module.embed_dim,
        "num_heads": torch_module.num_heads,
        "dropout": torch_module.dropout,
        "bias": torch_module.in_proj_bias is not None,
        "add_bias_kv": torch_module.bias_k is not None,
        "add_zero_attn": torch_module.add_zero_attn,
        "kdim": torch_module.kdim,
        "vdim": torch_module.vdim,
        "batch_first": torch_module.batch_first,
    }


@register("torch.nn.modules.activation.MultiheadAttention", configuration=_configuration)
class MultiheadAttention(nnx.Module):
    """output = out_proj(concat over heads of softmax(qₙ kₙᵀ / √H + masks) vₙ), as torch.nn.MultiheadAttention.

    Parameters have PyTorch's names and layouts: `in_proj_weight` [3E, E] (rows of q, k, v), or `q_proj_weight` [E, E],
    `k_proj_weight` [E, kdim], `v_proj_weight` [E, vdim] when kdim or vdim differ from E; `in_proj_bias` [3E]; and the
    linear layer `out_proj`.

    This is PyTorch's plain path. PyTorch itself departs from it:

        where                                      PyTorch                            here
        is_causal, no weights, no padding mask     drops attn_mask, causal instead    attn_mask must be causal
        likewise, add_bias_kv or add_zero_attn     hides the columns they append      every query sees them
        fast path, a query with every key blocked  NaN also without weights           zero before out_proj
        fast path of encoder layers, float mask    non-zero counts as blocked         added to the logits
        fast path of encoder layers, GELU("tanh")  computes the exact GELU            computes the tanh GELU
        fast path of TransformerEncoder, padding   padded positions come back as 0    they are computed

    The fast path runs in evaluation mode without gradients; `torch.backends.mha.set_fastpath_enabled(False)` switches
    it off.

    Args:
        embed_dim: E, width of queries and outputs, in features.
        num_heads: N; must divide embed_dim.
        dropout: rate on the weights in training, in [0, 1).
        bias: whether the projections have biases.
        add_bias_kv: append a learned key and value (`bias_k`, `bias_v`) to the sequence.
        add_zero_attn: append a zero key and value to the sequence, after those of add_bias_kv.
        kdim: width of keys, in features; None is embed_dim.
        vdim: width of values, in features; None is embed_dim.
        batch_first: [*B, T, E] instead of torch's default [T, *B, E].
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Raises:
        ValueError: num_heads does not divide embed_dim.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_divisible(num_heads=num_heads, embed_dim=embed_dim)
        check_rate("dropout", dropout)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        check_sizes(kdim=self.kdim, vdim=self.vdim)
        self.dropout, self.add_zero_attn = dropout, add_zero_attn
        self.dtype, self.precision = dtype, precision
        options = {"param_dtype": param_dtype, "rngs": rngs}
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = parameter(_xavier_uniform, (3 * embed_dim, embed_dim), **options)
        else:
            self.q_proj_weight = parameter(_xavier_uniform, (embed_dim, embed_dim), **options)
            self.k_proj_weight = parameter(_xavier_uniform, (embed_dim, self.kdim), **options)
            self.v_proj_weight = parameter(_xavier_uniform, (embed_dim, self.vdim), **options)
        self.in_proj_bias = parameter(zeros, (3 * embed_dim,), **options) if bias else None
        self.bias_k = parameter(_xavier_normal, (1, 1, embed_dim), **options) if add_bias_kv else None
        self.bias_v = parameter(_xavier_normal, (1, 1, embed_dim), **options) if add_bias_kv else None
        self.out_proj = linear(
            embed_dim, embed_dim, use_bias=bias, bias_init=zeros, dtype=dtype, precision=precision, **options
        )

    def __call__(
        self,
        query: TensorLike,
        key: TensorLike,
        value: TensorLike,
        key_padding_mask: TensorLike | None = None,
        need_weights: bool = True,
        attn_mask: TensorLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_mask: TensorLike | None = None,
        empty_row: EmptyRow | None = None,
    ) -> AttentionOutput:
        """query [*B, T, E], key [*B, S, kdim], value [*B, S, vdim] (batch_first) → output [*B, T, E].

        Weights are [*B, T, S] averaged over heads, [*B, N, T, S] with average_attn_weights=False, None with
        need_weights=False; after dropout, as torch gives them. add_bias_kv and add_zero_attn each add a column. Torch
        tensors are taken as they are.

        Args:
            query: [T, *B, E], or [*B, T, E] with batch_first.
            key: [S, *B, kdim] or [*B, S, kdim].
            value: [S, *B, vdim] or [*B, S, vdim].
            key_padding_mask: [*B, S]; boolean True = blocked, floating = added to the logits.
            need_weights: whether to return the weights.
            attn_mask: [T, S], or [B·N, T, S] with index b·N + n; boolean True = blocked, floating = added.
            average_attn_weights: mean over heads instead of one map a head.
            is_causal: a promise that attn_mask is the causal mask (checked outside jit); both are applied.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws the dropout mask.
            dropout_mask: the weights that are kept (True), [*B, N, T, S], instead of drawing them.
            empty_row: a query with nothing to attend: "nan" with need_weights and "zero" without are torch's answers.
                Without any keys (S = 0) both are "zero".

        Raises:
            ValueError: shapes that do not fit; is_causal without attn_mask or with another mask than the causal one.
            TypeError: integer masks.
        """
        shared = query is key and key is value
        query, key, value = (self._batch_first(as_array(inputs)) for inputs in (query, key, value))
        check_features("query", query, self.embed_dim, "[*B, T, embed_dim]")
        check_features("key", key, self.kdim, "[*B, S, kdim]")
        check_features("value", value, self.vdim, "[*B, S, vdim]")
        check_same_batch(query=query, key=key, value=value)
        check_length("value", value, key.shape[-2])
        logits_shape = (*query.shape[:-2], self.num_heads, query.shape[-2], key.shape[-2])
        q, k, v = self._project(query) if shared else self._project(query, key, value)
        k, v = self._append_rows(k, v)
        mask, bias = from_torch_masks(
            attn_mask, key_padding_mask, logits_shape, is_causal=is_causal, appended=k.shape[-2] - key.shape[-2]
        )
        rate = 0.0 if deterministic else self.dropout
        keep = as_array(dropout_mask) if rate and dropout_mask is not None else None
        drawn = dropout_key(rngs) if rate and keep is None else None
        output, weights = dot_product_attention(
            *(split_heads(features, self.num_heads) for features in (q, k, v)),
            mask=mask,
            bias=bias,
            empty_row=empty_row or ("nan" if need_weights and k.shape[-2] else "zero"),
            dropout_rate=rate,
            dropout_rng=drawn,
            dropout_mask=keep,
            return_weights=need_weights,
            precision=self.precision,
        )
        output = self.out_proj(merge_heads(output))
        output = output if self.batch_first or output.ndim < 3 else jnp.moveaxis(output, -2, 0)
        if weights is not None and drawn is not None:
            keep = draw_attention_keep_mask(drawn, rate, weights.shape)
        return AttentionOutput(output, self._returned(weights, rate, keep, average_attn_weights))

    def _batch_first(self, inputs: jax.Array) -> jax.Array:
        return inputs if self.batch_first or inputs.ndim < 3 else jnp.moveaxis(inputs, 0, -2)

    def _project(self, query: jax.Array, key: jax.Array | None = None, value: jax.Array | None = None):
        """q, k, v [*B, length, E]; one product for all three if they are the same array."""
        options = {"dtype": self.dtype, "precision": self.precision}
        bias = None if self.in_proj_bias is None else self.in_proj_bias[...]
        packed = hasattr(self, "in_proj_weight")
        if key is None and packed:
            return jnp.split(project(query, self.in_proj_weight[...], bias, **options), 3, axis=-1)
        weights = (
            jnp.split(self.in_proj_weight[...], 3)
            if packed
            else [self.q_proj_weight[...], self.k_proj_weight[...], self.v_proj_weight[...]]
        )
        biases = (None,) * 3 if bias is None else jnp.split(bias, 3)
        inputs = (query, query if key is None else key, query if value is None else value)
        return [project(x, weight, bias, **options) for x, weight, bias in zip(inputs, weights, biases, strict=True)]

    def _append_rows(self, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The learned row of add_bias_kv, then the zero row of add_zero_attn."""

        def append(sequence: jax.Array, row: jax.Array | None = None) -> jax.Array:
            # Padded and replaced, not concatenated: the row is sharded as the sequence, whatever the mesh.
            longer = jnp.pad(sequence, [(0, 0)] * (sequence.ndim - 2) + [(0, 1), (0, 0)])
            if row is None:
                return longer
            is_last = (jnp.arange(longer.shape[-2]) == sequence.shape[-2])[:, None]
            row = row.reshape(-1).astype(sequence.dtype)
            return jnp.where(with_rank(is_last, longer.ndim), with_rank(row, longer.ndim), longer)

        if self.bias_k is not None and self.bias_v is not None:
            k, v = append(k, self.bias_k[...]), append(v, self.bias_v[...])
        if self.add_zero_attn:
            k, v = append(k), append(v)
        return k, v

    @staticmethod
    def _returned(weights: jax.Array | None, rate: float, keep: jax.Array | None, average: bool) -> jax.Array | None:
        if weights is None:
            return None
        if keep is not None:  # in torch NaN · 0 is NaN: an empty row stays NaN where it is dropped
            weights = dropout(weights, rate, keep_mask=keep.astype(bool) | jnp.isnan(weights))
        return weights.mean(axis=-3) if average else weights
