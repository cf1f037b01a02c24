"""What encoders and decoders are made of: layers of sublayers, and stacks of layers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_divisible, check_sizes, check_whole
from .._typing import DType, Precision
from ..core.activations import Activation, activation_function
from ..core.mask_arrays import TensorLike
from ..layers import Dropout, LayerNorm, distinct, linear, repeated_names
from ..layers.dropping import Dropping
from ..variants.multihead_torch import MultiheadAttention


class TransformerLayer(nnx.Module):
    """Attentions, then linear2(activation(linear1(x))), each of these sublayers with a norm and a residual.

    Its arguments are those of TransformerEncoderLayer.
    """

    #: Names of the attentions, in the order in which they run.
    attentions: tuple[str, ...] = ()

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
        children: Mapping[str, Any] | None = None,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_divisible(nhead=nhead, d_model=d_model)
        check_sizes(dim_feedforward=dim_feedforward, least=0)
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        products = {**options, "precision": precision}
        make = partial(_child, children or {})
        for name in self.attentions:
            factory = partial(MultiheadAttention, d_model, nhead, dropout, bias, batch_first=batch_first, **products)
            setattr(self, name, make(name, factory))
        self.linear1 = make("linear1", partial(linear, d_model, dim_feedforward, use_bias=bias, **products))
        self.dropout = make("dropout", partial(Dropout, dropout))
        self.linear2 = make("linear2", partial(linear, dim_feedforward, d_model, use_bias=bias, **products))
        self.activation = activation_function(make("activation", lambda: activation))
        for place in range(1, len(self.attentions) + 2):
            norm = partial(LayerNorm, d_model, epsilon=layer_norm_eps, use_bias=bias, **options)
            setattr(self, f"norm{place}", make(f"norm{place}", norm))
            setattr(self, f"dropout{place}", make(f"dropout{place}", partial(Dropout, dropout)))
        self.norm_first = norm_first

    @classmethod
    def parts(cls) -> tuple[str, ...]:
        """Names of the children."""
        numbers = range(1, len(cls.attentions) + 2)
        numbered = [f"{name}{number}" for name in ("norm", "dropout") for number in numbers]
        return (*cls.attentions, "linear1", "dropout", "linear2", "activation", *numbered)

    def _sublayer(
        self, place: int, inputs: jax.Array, function: Callable[[jax.Array], jax.Array], dropping: Dropping
    ) -> jax.Array:
        """norm(inputs + dropout(function(inputs))), or inputs + dropout(function(norm(inputs)))."""
        norm = partial(dropping.apply, f"norm{place}", getattr(self, f"norm{place}"))
        drop = partial(dropping.apply, f"dropout{place}", getattr(self, f"dropout{place}"))
        if self.norm_first:
            return inputs + drop(function(norm(inputs)))
        return norm(inputs + drop(function(inputs)))

    def _attend(
        self,
        place: int,
        inputs: jax.Array,
        source: jax.Array | None,
        dropping: Dropping,
        masked: str,
        masks: tuple[TensorLike | None, TensorLike | None],
        is_causal: bool,
    ) -> jax.Array:
        """The sublayer of an attention to `source`, or to its own inputs.

        Args:
            place: 1, 2, … of the attention among `attentions`.
            inputs: [*B, T, D] or [T, *B, D].
            source: what is attended; None is the inputs, normalised where the sublayer begins with its norm.
            dropping: of the call.
            masked: "src", "tgt" or "memory", as the layer's arguments for the masks begin.
            masks: its mask and its key padding mask.
            is_causal: a promise about the former.
        """
        name = self.attentions[place - 1]
        options = {"deterministic": dropping.deterministic, "rngs": dropping.rngs, "dropout_mask": dropping.mask(name)}
        options |= {"attn_mask": masks[0], "key_padding_mask": masks[1], "is_causal": is_causal}

        def attend(x: jax.Array) -> jax.Array:
            attended = x if source is None else source
            try:
                return getattr(self, name)(x, attended, attended, need_weights=False, **options).output
            except (TypeError, ValueError) as error:
                for own, given in (("attn_mask", "mask"), ("key_padding_mask", "key_padding_mask")):
                    if f"`{own}`" in str(error):
                        error.add_note(f"`{own}` of `{name}` is `{masked}_{given}` of the layer.")
                raise

        return self._sublayer(place, inputs, attend, dropping)

    def _feed_forward(self, inputs: jax.Array, dropping: Dropping) -> jax.Array:
        """The last sublayer."""

        def feed_forward(x: jax.Array) -> jax.Array:
            hidden = dropping.apply("activation", self.activation, dropping.apply("linear1", self.linear1, x))
            return dropping.apply("linear2", self.linear2, dropping.apply("dropout", self.dropout, hidden))

        return self._sublayer(len(self.attentions) + 1, inputs, feed_forward, dropping)


def _child(children: Mapping[str, Any], name: str, make: Callable[[], Any]) -> Any:
    return children[name] if name in children else make()


class TransformerStack(nnx.Module):
    """norm(layer_N(… layer_1(x))).

    Args:
        layer: what the public classes call `encoder_layer` or `decoder_layer`.
        num_layers: number of layers.
        norm: a module applied to the output; None applies none.
    """

    def __init__(self, layer: nnx.Module | Sequence[nnx.Module], num_layers: int, norm: nnx.Module | None):
        layers, self.order = distinct(layers_of(layer, num_layers))
        self.layers = nnx.List(layers)
        self.norm = norm

    def torch_names(self) -> dict[str, tuple[str, ...]]:
        return repeated_names(self.order, self._names(), "layers")

    def _names(self) -> list[str]:
        return [f"layers.{place}" for place in range(len(self.order))]

    def _run(self, inputs: jax.Array, dropping: Dropping, *sources: jax.Array, **arguments: Any) -> jax.Array:
        """The layers one after the other, each called with what the one before gave, `sources` and `arguments`."""
        dropping.check(*self._names(), "norm")
        x = inputs
        for name, index in zip(self._names(), self.order, strict=True):
            layer: Any = self.layers[index]
            x = layer(x, *sources, **arguments, **dropping.options(name, layer))
        return x if self.norm is None else dropping.apply("norm", self.norm, x)


def layers_of(layer: nnx.Module | Sequence[nnx.Module], num_layers: int) -> list[nnx.Module]:
    """Independent copies of one layer, or the given layers."""
    check_whole("num_layers", num_layers, least=0)
    if isinstance(layer, nnx.Module):
        return [nnx.clone(layer) for _ in range(num_layers)]
    if len(layer) != num_layers:
        raise ValueError(f"`num_layers` must be the number of layers given, got num_layers={num_layers}, {len(layer)}.")
    return list(layer)
