"""torch.nn.TransformerEncoderLayer and torch.nn.TransformerEncoder."""

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
    "torch.nn.modules.transformer.TransformerEncoderLayer",
    configuration=lambda layer, build: layer_configuration(layer, build, TransformerEncoderLayer.parts()),
)
class TransformerEncoderLayer(TransformerLayer):
    """norm2(y + FF(y)), y = norm1(x + self_attn(x)); with norm_first y + FF(norm2(y)), y = x + self_attn(norm1(x)).

    FF(x) = linear2(activation(linear1(x))). In training, dropout follows the activation and both sublayers, as the
    modules `dropout`, `dropout1` and `dropout2`, and applies to the weights of `self_attn`.

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

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html; pre-norm: Xiong et
    al. 2020, https://arxiv.org/abs/2002.04745
    """

    attentions = ("self_attn",)
    self_attn: Any
    norm1: Any
    norm2: Any
    dropout1: Any
    dropout2: Any

    def __call__(
        self,
        src: TensorLike,
        src_mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, TensorLike] | None = None,
    ) -> jax.Array:
        """src [T, *B, D], or [*B, T, D] with batch_first → the same shape.

        Args:
            src: the sequence.
            src_mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            src_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            is_causal: a promise that src_mask is the causal mask.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: what is kept (True), instead of drawing it: "self_attn" [*B, N, T, T], "dropout", "dropout1",
                "dropout2", each in the layout of what it multiplies.

        Raises:
            ValueError: shapes that do not fit; is_causal without the causal mask; a dropout mask for no part.
            TypeError: integer masks.
        """
        dropping = Dropping(deterministic, rngs, dropout_masks)
        dropping.check(*self.parts())
        masks = src_mask, src_key_padding_mask
        x = self._attend(1, as_array(src), None, dropping, "src", masks, is_causal)
        return self._feed_forward(x, dropping)


@register(
    "torch.nn.modules.transformer.TransformerEncoder",
    configuration=lambda encoder, build: stack_configuration(encoder, build, "encoder_layer"),
)
class TransformerEncoder(TransformerStack):
    """norm(layer_N(… layer_1(src))).

    Args:
        encoder_layer: a layer, copied num_layers times as torch does, or the layers themselves, which may differ; one
            that is there several times is kept once.
        num_layers: number of layers.
        norm: a module applied to the output; None applies none.
        enable_nested_tensor: torch's; without effect here.
        mask_check: torch's; without effect here.
        dtype: without effect, the layers have theirs.
        param_dtype: without effect, likewise.
        precision: without effect, likewise.
        rngs: without effect, likewise.

    Raises:
        ValueError: a sequence of layers of another length than num_layers.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html
    """

    def __init__(
        self,
        encoder_layer: nnx.Module | Sequence[nnx.Module],
        num_layers: int,
        norm: nnx.Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs | None = None,
    ):
        del enable_nested_tensor, mask_check, dtype, param_dtype, precision, rngs
        super().__init__(encoder_layer, num_layers, norm)

    def __call__(
        self,
        src: TensorLike,
        mask: TensorLike | None = None,
        src_key_padding_mask: TensorLike | None = None,
        is_causal: bool | None = None,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, TensorLike] | None = None,
    ) -> jax.Array:
        """src [T, *B, D], or [*B, T, D] with batch_first layers → the same shape.

        Args:
            src: the sequence.
            mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            src_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            is_causal: a promise that mask is the causal mask. None, torch's "detect", promises nothing: the mask is
                applied as it is, which gives the same (but torch gives a floating mask that it detects no gradient).
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: what is kept (True) by paths: "layers.0.self_attn", "layers.0.dropout1", …

        Raises:
            ValueError: shapes that do not fit; is_causal without the causal mask; a dropout mask for no part.
            TypeError: integer masks.
        """
        return self._run(
            as_array(src),
            Dropping(deterministic, rngs, dropout_masks),
            src_mask=mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=bool(is_causal),
        )
