"""BERT's attention by itself: Hugging Face's BertSelfAttention."""

import jax.numpy as jnp
from flax import nnx

from .._checks import check_divisible, check_features, check_rate
from .._typing import ArrayLike, DType, Precision
from ..convert.registry import register
from ..core.dot_product import AttentionOutput, dot_product_attention
from ..core.dropout import draw_attention_keep_mask, dropout
from ..core.heads import merge_heads, split_heads
from ..layers import dropout_key, linear


def _configuration(torch_module, build):
    del build
    if torch_module.is_decoder or torch_module.is_causal:
        raise NotImplementedError(
            "BertSelfAttention of a decoder (causal, with a cache) has no twin, the encoder's has."
        )
    return {
        "hidden_size": torch_module.all_head_size,
        "num_attention_heads": torch_module.num_attention_heads,
        "dropout": torch_module.dropout.p,
    }


@register("transformers.models.bert.modeling_bert.BertSelfAttention", configuration=_configuration)
class BertSelfAttention(nnx.Module):
    """softmax(qₙ kₙᵀ / √H + attention_mask) vₙ of all heads side by side, without an output projection.

    Equal to transformers' class with attn_implementation="eager".

    Args:
        hidden_size: D, width of inputs and outputs, in features.
        num_attention_heads: N; must divide hidden_size.
        dropout: rate on the weights, in [0, 1).
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Raises:
        ValueError: num_attention_heads does not divide hidden_size.

    Reference: Devlin et al. 2019, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        dropout: float = 0.1,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_divisible(num_attention_heads=num_attention_heads, hidden_size=hidden_size)
        check_rate("dropout", dropout)
        options = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.dropout, self.precision = dropout, precision
        self.query = linear(hidden_size, hidden_size, **options)
        self.key = linear(hidden_size, hidden_size, **options)
        self.value = linear(hidden_size, hidden_size, **options)

    def __call__(
        self,
        hidden_states: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_mask: ArrayLike | None = None,
    ) -> AttentionOutput:
        """hidden_states [*B, T, D] → output [*B, T, D], weights [*B, N, T, T] (after dropout).

        Args:
            hidden_states: the sequence.
            attention_mask: floating, added to the logits, broadcastable to [*B, N, T, T]: what transformers makes of
                its masks of 0 and 1.
            deterministic: False applies dropout to the weights.
            rngs: its stream `dropout` draws what is kept.
            dropout_mask: True = kept, [*B, N, T, T], instead of drawing.

        Raises:
            ValueError: shapes that do not fit; dropout without randomness.
            TypeError: a mask that is not floating.
        """
        x = jnp.asarray(hidden_states)
        check_features("hidden_states", x, self.hidden_size, "[*B, T, hidden_size]")
        q, k, v = (split_heads(layer(x), self.num_attention_heads) for layer in (self.query, self.key, self.value))
        keep = None
        if not deterministic and self.dropout:
            shape = (*x.shape[:-2], self.num_attention_heads, x.shape[-2], x.shape[-2])
            if dropout_mask is None:
                keep = draw_attention_keep_mask(dropout_key(rngs), self.dropout, shape)
            else:
                keep = jnp.asarray(dropout_mask)
        output, weights = dot_product_attention(
            q,
            k,
            v,
            bias=attention_mask,
            dropout_rate=0.0 if keep is None else self.dropout,
            dropout_mask=keep,
            return_weights=True,
            precision=self.precision,
        )
        return AttentionOutput(
            merge_heads(output), weights if keep is None else dropout(weights, self.dropout, keep_mask=keep)
        )
