"""torch.nn.TransformerEncoderLayer and torch.nn.TransformerEncoder."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from .._typing import ArrayLike, DType, Precision
from ..convert.registry import register
from ..core.activations import Activation, activation_function
from ..core.dropout import dropout
from ..layers import dropout_key, layer_norm, linear
from ..variants.multihead_torch import MultiheadAttention
from .torch_configuration import activation_of


def _layer_configuration(torch_layer, build):
    del build
    return {
        "d_model": torch_layer.self_attn.embed_dim,
        "nhead": torch_layer.self_attn.num_heads,
        "dim_feedforward": torch_layer.linear1.out_features,
        "dropout": torch_layer.dropout.p,
        "activation": activation_of(torch_layer.activation),
        "layer_norm_eps": torch_layer.norm1.eps,
        "batch_first": torch_layer.self_attn.batch_first,
        "norm_first": torch_layer.norm_first,
        "bias": torch_layer.linear1.bias is not None,
    }


@register("torch.nn.modules.transformer.TransformerEncoderLayer", configuration=_layer_configuration)
class TransformerEncoderLayer(nnx.Module):
    """norm2(y + FF(y)), y = norm1(x + self_attn(x)); with norm_first y + FF(norm2(y)), y = x + self_attn(norm1(x)).

    FF(x) = linear2(activation(linear1(x))). In training, dropout follows the activation and both sublayers.

    Args:
        d_model: D, width of inputs and outputs, in features.
        nhead: N, number of heads; must divide d_model.
        dim_feedforward: width of the hidden layer, in features.
        dropout: rate, in [0, 1).
        activation: "relu", "gelu" (exact), another name of `core.activations`, or a function of an array.
        layer_norm_eps: added to the variance.
        batch_first: [*B, T, D] instead of torch's default [T, *B, D].
        norm_first: normalise before the sublayers instead of after them.
        bias: whether linear layers and norms have biases.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html; pre-norm: Xiong et
    al. 2020, https://arxiv.org/abs/2002.04745
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
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
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        products = {**options, "precision": precision}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **products)
        self.linear1 = linear(d_model, dim_feedforward, use_bias=bias, **products)
        self.linear2 = linear(dim_feedforward, d_model, use_bias=bias, **products)
        self.norm1 = layer_norm(d_model, epsilon=layer_norm_eps, use_bias=bias, **options)
        self.norm2 = layer_norm(d_model, epsilon=layer_norm_eps, use_bias=bias, **options)
        self.activation = activation_function(activation)
        self.dropout = dropout
        self.norm_first = norm_first

    def __call__(
        self,
        src: ArrayLike,
        src_mask: ArrayLike | None = None,
        src_key_padding_mask: ArrayLike | None = None,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
    ) -> jax.Array:
        """src [T, *B, D], or [*B, T, D] with batch_first → the same shape.

        Args:
            src: the sequence.
            src_mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            src_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            is_causal: a promise that src_mask is the causal mask.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws the dropout masks.

        Raises:
            ValueError: shapes that do not fit; is_causal without the causal mask.
            TypeError: integer masks.
        """
        x = jnp.asarray(src)

        def attend(inputs: jax.Array) -> jax.Array:
            output, _ = self.self_attn(
                inputs,
                inputs,
                inputs,
                src_key_padding_mask,
                attn_mask=src_mask,
                need_weights=False,
                is_causal=is_causal,
                deterministic=deterministic,
                rngs=rngs,
            )
            return self._drop(output, deterministic, rngs)

        def feed_forward(inputs: jax.Array) -> jax.Array:
            hidden = self._drop(self.activation(self.linear1(inputs)), deterministic, rngs)
            return self._drop(self.linear2(hidden), deterministic, rngs)

        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed_forward(self.norm2(x))
        x = self.norm1(x + attend(x))
        return self.norm2(x + feed_forward(x))

    def _drop(self, inputs: jax.Array, deterministic: bool, rngs: nnx.Rngs | None) -> jax.Array:
        if deterministic or not self.dropout:
            return inputs
        return dropout(inputs, self.dropout, rng=dropout_key(rngs))


def _encoder_configuration(torch_encoder, build):
    return {
        "encoder_layer": [build(layer) for layer in torch_encoder.layers],
        "num_layers": len(torch_encoder.layers),
        "norm": None if torch_encoder.norm is None else build(torch_encoder.norm),
    }


@register("torch.nn.modules.transformer.TransformerEncoder", configuration=_encoder_configuration)
class TransformerEncoder(nnx.Module):
    """norm(layer_N(… layer_1(src))).

    Args:
        encoder_layer: a layer, copied num_layers times as torch does, or the layers themselves, which may differ.
        num_layers: number of layers.
        norm: a module applied to the output; None applies none.
        enable_nested_tensor: torch's; without effect here.
        mask_check: torch's; without effect here.
        dtype: without effect, the layers have theirs.
        param_dtype: without effect, likewise.
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
        rngs: nnx.Rngs | None = None,
    ):
        del enable_nested_tensor, mask_check, dtype, param_dtype, rngs
        self.layers = nnx.List(layers_of(encoder_layer, num_layers))
        self.norm = norm

    def __call__(
        self,
        src: ArrayLike,
        mask: ArrayLike | None = None,
        src_key_padding_mask: ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
    ) -> jax.Array:
        """src [T, *B, D], or [*B, T, D] with batch_first layers → the same shape.

        Args:
            src: the sequence.
            mask: [T, T] or [B·N, T, T]; boolean True = blocked, floating = added to the logits.
            src_key_padding_mask: [*B, T]; boolean True = blocked, floating = added.
            is_causal: a promise that mask is the causal mask; None makes none, the mask is applied as it is.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws the dropout masks.

        Raises:
            ValueError: shapes that do not fit; is_causal without the causal mask.
            TypeError: integer masks.
        """
        output = jnp.asarray(src)
        for layer in self.layers:
            output = layer(output, mask, src_key_padding_mask, bool(is_causal), deterministic=deterministic, rngs=rngs)
        return output if self.norm is None else self.norm(output)


def layers_of(layer: nnx.Module | Sequence[nnx.Module], num_layers: int) -> list[nnx.Module]:
    """Independent copies of one layer, or the given layers."""
    if isinstance(layer, nnx.Module):
        return [nnx.clone(layer) for _ in range(num_layers)]
    if len(layer) != num_layers:
        raise ValueError(f"`num_layers` must be the number of layers given, got num_layers={num_layers}, {len(layer)}.")
    return list(layer)
