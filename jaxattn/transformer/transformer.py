"""torch.nn.Transformer."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._checks import check_divisible, check_features, check_floating, check_same_batch, check_sizes
from .._typing import DType, Precision
from ..convert.registry import register
from ..core.activations import Activation
from ..core.mask_arrays import TensorLike, as_array, causal_array
from ..layers import LayerNorm
from ..layers.dropping import Dropping
from .decoder import TransformerDecoder, TransformerDecoderLayer
from .encoder import TransformerEncoder, TransformerEncoderLayer

_xavier_uniform = nnx.initializers.variance_scaling(1.0, "fan_avg", "uniform")


def _configuration(torch_transformer, build):
    return {
        "d_model": torch_transformer.d_model,
        "nhead": torch_transformer.nhead,
        "custom_encoder": build(torch_transformer.encoder),
        "custom_decoder": build(torch_transformer.decoder),
        "batch_first": torch_transformer.batch_first,
    }


@register("torch.nn.modules.transformer.Transformer", configuration=_configuration)
class Transformer(nnx.Module):
    """decoder(tgt, encoder(src)): stacks that end on a norm, also where their layers end on one.

    Initial matrices are Xavier-uniform as torch's, except in a custom encoder or decoder, which is left as it is.

    Args:
        d_model: D, width of inputs and outputs, in features.
        nhead: N, number of heads; must divide d_model.
        num_encoder_layers: number of layers of the encoder.
        num_decoder_layers: number of layers of the decoder.
        dim_feedforward: width of the hidden layers, in features.
        dropout: rate, in [0, 1).
        activation: "relu", "gelu" (exact), another name of `core.activations`, a function of an array or a module.
        custom_encoder: takes the place of the encoder, and is called as it.
        custom_decoder: takes the place of the decoder, and is called as it.
        layer_norm_eps: added to the variance.
        batch_first: [*B, T, D] instead of torch's default [T, *B, D].
        norm_first: normalise before the sublayers instead of after them.
        bias: whether linear layers and norms have biases.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html; Vaswani et al. 2017,
    https://arxiv.org/abs/1706.03762, which has no final norms.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        custom_encoder: nnx.Module | None = None,
        custom_decoder: nnx.Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_divisible(nhead=nhead, d_model=d_model)
        check_sizes(
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            dim_feedforward=dim_feedforward,
            least=0,
        )
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def stack(layer_class: Any, stack_class: Any, num_layers: int) -> Any:
            norm = LayerNorm(d_model, epsilon=layer_norm_eps, use_bias=bias, **options)
            stack = stack_class(layer_class(*layer, precision=precision, **options), num_layers, norm)
            for _, parameter in nnx.to_flat_state(nnx.state(stack, nnx.Param)):
                if parameter.ndim > 1:
                    parameter[...] = _xavier_uniform(rngs.params(), parameter.shape, parameter.dtype)
            return stack

        if custom_encoder is None:
            custom_encoder = stack(TransformerEncoderLayer, TransformerEncoder, num_encoder_layers)
        if custom_decoder is None:
            custom_decoder = stack(TransformerDecoderLayer, TransformerDecoder, num_decoder_layers)
        self.encoder: Any = custom_encoder
        self.decoder: Any = custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def __call__(
        self,
        src: TensorLike,
        tgt: TensorLike,
        src_mask: TensorLike | None = None,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, TensorLike] | None = None,
    ) -> jax.Array:
        """src [S, *B, D], tgt [T, *B, D], or [*B, S, D] and [*B, T, D] with batch_first → the shape of tgt.

        Args:
            src: the sequence to the encoder.
            tgt: the sequence to the decoder.
            src_mask: [S, S] or [B·N, S, S]; boolean True = blocked, floating = added to the logits.
            tgt_mask: [T, T] or [B·N, T, T], likewise.
            memory_mask: [T, S] or [B·N, T, S], likewise.
            src_key_padding_mask: [*B, S]; boolean True = blocked, floating = added.
            tgt_key_padding_mask: [*B, T], likewise.
            memory_key_padding_mask: [*B, S], likewise; the decoder does not take it from src_key_padding_mask.
            src_is_causal: a promise that src_mask is the causal mask; None promises nothing.
            tgt_is_causal: a promise that tgt_mask is, likewise.
            memory_is_causal: a promise that memory_mask is, with j ≤ i for query i and key j.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: what is kept (True) by paths: "encoder.layers.0.dropout1", "decoder.layers.0.self_attn", …

        Raises:
            ValueError: shapes that do not fit; a causal promise without the causal mask; a dropout mask for no part.
            TypeError: integer masks.
        """
        src, tgt = as_array(src), as_array(tgt)
        check_features("src", src, self.d_model, "[*B, S, d_model]")
        check_features("tgt", tgt, self.d_model, "[*B, T, d_model]")
        check_same_batch(src=self._batch_first(src), tgt=self._batch_first(tgt))
        dropping = Dropping(deterministic, rngs, dropout_masks)
        dropping.check("encoder", "decoder")
        memory = self.encoder(
            src,
            mask=src_mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=src_is_causal,
            **dropping.options("encoder", self.encoder),
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
            **dropping.options("decoder", self.decoder),
        )

    def _batch_first(self, inputs: jax.Array) -> jax.ShapeDtypeStruct:
        length, *batch, features = inputs.shape
        first = self.batch_first or inputs.ndim < 3
        return jax.ShapeDtypeStruct(inputs.shape if first else (*batch, length, features), inputs.dtype)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, dtype: DType = jnp.float32) -> jax.Array:
        """[sz, sz]: −∞ above the diagonal and 0 elsewhere, or True above it and False elsewhere with a boolean dtype.

        Args:
            sz: number of positions.
            dtype: floating or boolean.

        Raises:
            TypeError: any other dtype.
        """
        blocked = ~causal_array(sz, sz)
        if jnp.dtype(dtype) == jnp.bool_:
            return jnp.asarray(blocked)
        check_floating("dtype", jax.ShapeDtypeStruct((), dtype))
        return jnp.asarray(np.where(blocked, -np.inf, 0.0), dtype)
