"""torch.nn.TransformerDecoderLayer and torch.nn.TransformerDecoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._typing import DType, Precision
from ..convert.registry import register
from ..core.mask_arrays import TensorLike, as_array
from ..layers.dropping import Dropping
from .layer import TransformerLayer, TransformerStack
from .torch_configuration import layer_configuration, stack_configuration


@register(
    "torch.nn.modules.transformer.TransformerDecoderLayer",
    configuration=lambda layer, build: layer_configuration(layer, build, TransformerDecoderLayer.parts()),
)
class TransformerDecoderLayer(TransformerLayer):
    """norm3(z + FF(z)), z = norm2(y + multihead_attn(y, memory)), y = norm1(x + self_attn(x)).

    With norm_first z + FF(norm3(z)), z = y + multihead_attn(norm2(y), memory), y = x + self_attn(norm1(x)): the memory
    is not normalised. FF(x) = linear2(activation(linear1(x))). In training, dropout follows the activation and every
    sublayer, as the modules `dropout`, `dropout1`, `dropout2` and `dropout3`, and applies to the weights of both
    attentions.

    Args:
        d_model: D, width of inputs and outputs, in features.
        nhead: N, number of heads; must divide d_model.
        dim_feedforward: width of the hidden layer, in features.
        dropout: rate, in [0, 1).
        activation: "relu", "gelu" (exact), another name of `core.activations`, a function of an array or a module.
        layer_norm_eps: added to the variance.
        batch_first: [*B, T, D] instead of torch's default [T, *B, D].
        norm_first: normalise before the sublayers instead of after them.
        bias: whether linear layers and norms have biases.
        children: modules by their names, which take the place of those that the other arguments describe.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoderLayer.html; pre-norm: Xiong et
    al. 2020, https://arxiv.org/abs/2002.04745
    """

    attentions = ("self_attn", "multihead_attn")
    self_attn: Any
    multihead_attn: Any
    norm1: Any
    norm2: Any
    norm3: Any
    dropout1: Any
    dropout2: Any
    dropout3: Any

    def __call__(
        self,
        tgt: TensorLike,
        memory: TensorLike,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, TensorLike] | None = None,
    ) -> jax.Array:
        """tgt [T, *B, D], memory [S, *B, D], or [*B, T, D] and [*B, S, D] with batch_first → the shape of tgt.

        Args:
            tgt: the sequence.
            memory: what the encoder gave.
            tgt_mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            memory_mask: [T, S] or [B·N, T, S], likewise.
            tgt_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            memory_key_padding_mask: [*B, S], likewise.
            tgt_is_causal: a promise that tgt_mask is the causal mask.
            memory_is_causal: a promise that memory_mask is, with j ≤ i for query i and key j.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: what is kept (True), instead of drawing it: "self_attn" [*B, N, T, T], "multihead_attn"
                [*B, N, T, S], "dropout", "dropout1", "dropout2", "dropout3", each in the layout of what it multiplies.

        Raises:
            ValueError: shapes that do not fit; a causal promise without the causal mask; a dropout mask for no part.
            TypeError: integer masks.
        """
        dropping = Dropping(deterministic, rngs, dropout_masks)
        dropping.check(*self.parts())
        masks = tgt_mask, tgt_key_padding_mask
        x = self._attend(1, as_array(tgt), None, dropping, "tgt", masks, tgt_is_causal)
        masks = memory_mask, memory_key_padding_mask
        x = self._attend(2, x, as_array(memory), dropping, "memory", masks, memory_is_causal)
        return self._feed_forward(x, dropping)


@register(
    "torch.nn.modules.transformer.TransformerDecoder",
    configuration=lambda decoder, build: stack_configuration(decoder, build, "decoder_layer"),
)
class TransformerDecoder(TransformerStack):
    """norm(layer_N(… layer_1(tgt, memory) …, memory)).

    Args:
        decoder_layer: a layer, copied num_layers times as torch does, or the layers themselves, which may differ; one
            that is there several times is kept once.
        num_layers: number of layers.
        norm: a module applied to the output; None applies none.
        dtype: without effect, the layers have theirs.
        param_dtype: without effect, likewise.
        precision: without effect, likewise.
        rngs: without effect, likewise.

    Raises:
        ValueError: a sequence of layers of another length than num_layers.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoder.html
    """

    def __init__(
        self,
        decoder_layer: nnx.Module | Sequence[nnx.Module],
        num_layers: int,
        norm: nnx.Module | None = None,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs | None = None,
    ):
        del dtype, param_dtype, precision, rngs
        super().__init__(decoder_layer, num_layers, norm)

    def __call__(
        self,
        tgt: TensorLike,
        memory: TensorLike,
        tgt_mask: TensorLike | None = None,
        memory_mask: TensorLike | None = None,
        tgt_key_padding_mask: TensorLike | None = None,
        memory_key_padding_mask: TensorLike | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, TensorLike] | None = None,
    ) -> jax.Array:
        """tgt [T, *B, D], memory [S, *B, D], or [*B, T, D] and [*B, S, D] with batch_first layers → the shape of tgt.

        Args:
            tgt: the sequence.
            memory: what the encoder gave.
            tgt_mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            memory_mask: [T, S] or [B·N, T, S], likewise.
            tgt_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            memory_key_padding_mask: [*B, S], likewise.
            tgt_is_causal: a promise that tgt_mask is the causal mask. None, torch's "detect", promises nothing: the
                mask is applied as it is, which gives the same (but torch gives a floating mask that it detects no
                gradient).
            memory_is_causal: a promise that memory_mask is, with j ≤ i for query i and key j.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: what is kept (True) by paths: "layers.0.multihead_attn", "layers.0.dropout3", …

        Raises:
            ValueError: shapes that do not fit; a causal promise without the causal mask; a dropout mask for no part.
            TypeError: integer masks.
        """
        return self._run(
            as_array(tgt),
            Dropping(deterministic, rngs, dropout_masks),
            as_array(memory),
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=bool(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
