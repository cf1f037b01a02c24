"""The modules that commands know by name: how to make them on both sides, and example inputs for them."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import typer
from flax import nnx

from .._text import argument
from ..transformer.decoder import TransformerDecoder, TransformerDecoderLayer
from ..transformer.encoder import TransformerEncoder, TransformerEncoderLayer
from ..transformer.sinusoidal import SinusoidalPositionalEncoding
from ..transformer.transformer import Transformer
from ..variants.multi_head import MultiHeadCrossAttention, MultiHeadSelfAttention
from ..variants.multihead_torch import MultiheadAttention
from ..variants.my_attn import MyAttn
from ..variants.scaled_dot_product import ScaledDotProductSelfAttention

Sizes = Mapping[str, Any]
#: (draw, length, source_length, sizes) → inputs; draw(*shape) is a random float32 array with the batch axes in front.
MakeInputs = Callable[[Callable[..., np.ndarray], int, int, Sizes], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class Variant:
    """One module by its name on the command line.

    Attributes:
        flax_class: the class here.
        torch_class: its PyTorch original, "module:Class"; imported only when asked for.
        defaults: every size that an option can set, and its value otherwise.
        make_inputs: makes the example inputs.
        arguments: sizes → constructor arguments, the same on both sides.
        choices: settings that are no sizes, and their values otherwise; weights don't depend on them.
        layer: classes of the layers that the constructor takes, for stacks: they get the arguments.
        torch_options: further arguments of PyTorch's constructor.
        length_size: the size that fixes the length of the source sequence, for weights that depend on it.
    """

    flax_class: Callable[..., nnx.Module]
    torch_class: str
    defaults: Sizes
    make_inputs: MakeInputs
    arguments: Callable[[Sizes], dict[str, Any]] = dict
    choices: Mapping[str, Any] = field(default_factory=dict)
    layer: tuple[Callable[..., nnx.Module], str] | None = None
    torch_options: Mapping[str, Any] = field(default_factory=dict)
    length_size: str | None = None

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(self.defaults)

    def sizes(self, **given: Any) -> dict[str, Any]:
        """The given sizes and choices, None meaning the default.

        Raises:
            ValueError: one that this variant doesn't have.
        """
        known = {**self.defaults, **self.choices}
        for name, size in given.items():
            if size is not None and name not in known:
                raise ValueError(
                    f"`{name}` is no size of this variant, got {argument(name, size)}; its sizes: {', '.join(known)}."
                )
        return {name: default if given.get(name) is None else given[name] for name, default in known.items()}

    def flax(self, rngs: nnx.Rngs, **sizes: Any) -> nnx.Module:
        """The module with random weights."""
        complete = self.sizes(**sizes)
        if self.layer is None:
            return self.flax_class(**self.arguments(complete), rngs=rngs)
        layers = [self.layer[0](**self.arguments(complete), rngs=rngs) for _ in range(complete["num_layers"])]
        return self.flax_class(layers, len(layers))

    def torch(self, **sizes: Any) -> Any:
        """The PyTorch original in evaluation mode, with weights from torch's global generator.

        Raises:
            ImportError: torch is not installed.
        """
        complete = self.sizes(**sizes)
        if self.layer is None:
            return _torch_class(self.torch_class)(**self.arguments(complete), **self.torch_options).eval()
        layer = _torch_class(self.layer[1])(**self.arguments(complete))
        return _torch_class(self.torch_class)(layer, complete["num_layers"], **self.torch_options).eval()

    def inputs(
        self, rng: np.random.Generator, batch: int | None, length: int, source_length: int, **sizes: Any
    ) -> tuple[np.ndarray, ...]:
        """Random float32 inputs; batch None is one example without a batch axis.

        A module over one sequence ignores source_length; where `length_size` fixes the length, both are ignored.
        """
        batch_axes = () if batch is None else (batch,)

        def draw(*shape: int) -> np.ndarray:
            return rng.standard_normal(batch_axes + shape).astype(np.float32)

        return self.make_inputs(draw, length, source_length, self.sizes(**sizes))


def _torch_class(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(f'{path} needs PyTorch: pip install "jaxattn[torch]".') from error


def _one_sequence(draw, length, source_length, sizes):
    del source_length
    return (draw(length, sizes["embed_dim"]),)


def _two_sequences(draw, length, source_length, sizes):
    return draw(length, sizes["embed_dim"]), draw(source_length, sizes.get("kv_dim") or sizes["embed_dim"])


def _source_and_target(draw, length, source_length, sizes):
    return draw(source_length, sizes["embed_dim"]), draw(length, sizes["embed_dim"])


def _same_thrice(draw, length, source_length, sizes):
    return _one_sequence(draw, length, source_length, sizes) * 3


def _query_key_value(draw, length, source_length, sizes):
    query, key = _two_sequences(draw, length, source_length, sizes)
    return query, key, draw(*key.shape[-2:])


def _one_row_over_values(draw, length, source_length, sizes):
    del length, source_length
    return (
        draw(1, sizes["query_size"]),
        draw(1, sizes["key_size"]),
        draw(sizes["value_size1"], sizes["value_size2"]),
    )


def _torch_heads(sizes: Sizes) -> dict[str, Any]:
    kv_dim = sizes.get("kv_dim")
    return {
        "embed_dim": sizes["embed_dim"],
        "num_heads": sizes["num_heads"],
        "kdim": kv_dim,
        "vdim": kv_dim,
        "batch_first": True,
    }


def _torch_layer(sizes: Sizes) -> dict[str, Any]:
    return {
        "d_model": sizes["embed_dim"],
        "nhead": sizes["num_heads"],
        "dim_feedforward": sizes["dim_feedforward"],
        "dropout": 0.0,
        "batch_first": True,
        **{choice: sizes[choice] for choice in _CHOICES},
    }


def _torch_stacks(sizes: Sizes) -> dict[str, Any]:
    numbers = ("num_encoder_layers", "num_decoder_layers")
    return {**_torch_layer(sizes), **{number: sizes[number] for number in numbers}}


_WIDTH = {"embed_dim": 64}
_HEADS = {"embed_dim": 64, "num_heads": 4}
_LAYER = {**_HEADS, "dim_feedforward": 256}
#: torch.nn's own values; a state dict says nothing of them.
_CHOICES = {"norm_first": False, "activation": "relu", "layer_norm_eps": 1e-5}
_CLASSIC = {"query_size": 32, "key_size": 32, "value_size1": 32, "value_size2": 64, "output_size": 32}
_ENCODER_LAYER = (TransformerEncoderLayer, "torch.nn:TransformerEncoderLayer")
_DECODER_LAYER = (TransformerDecoderLayer, "torch.nn:TransformerDecoderLayer")

VARIANTS: dict[str, Variant] = {
    "my_attn": Variant(MyAttn, "torchref:MyAttn", _CLASSIC, _one_row_over_values, length_size="value_size1"),
    "scaled_dot_product": Variant(
        ScaledDotProductSelfAttention, "torchref:ScaledDotProductSelfAttention", _WIDTH, _one_sequence
    ),
    "multi_head": Variant(MultiHeadSelfAttention, "torchref:MultiHeadSelfAttention", _HEADS, _one_sequence),
    "multi_head_cross": Variant(
        MultiHeadCrossAttention, "torchref:MultiHeadCrossAttention", {**_HEADS, "kv_dim": None}, _two_sequences
    ),
    "multihead_torch": Variant(
        MultiheadAttention, "torch.nn:MultiheadAttention", _HEADS, _same_thrice, arguments=_torch_heads
    ),
    "multihead_torch_cross": Variant(
        MultiheadAttention,
        "torch.nn:MultiheadAttention",
        {**_HEADS, "kv_dim": None},
        _query_key_value,
        arguments=_torch_heads,
    ),
    "encoder_layer": Variant(*_ENCODER_LAYER, _LAYER, _one_sequence, arguments=_torch_layer, choices=_CHOICES),
    "encoder": Variant(
        TransformerEncoder,
        "torch.nn:TransformerEncoder",
        {**_LAYER, "num_layers": 2},
        _one_sequence,
        arguments=_torch_layer,
        choices=_CHOICES,
        layer=_ENCODER_LAYER,
        torch_options={"enable_nested_tensor": False},
    ),
    "decoder_layer": Variant(*_DECODER_LAYER, _LAYER, _two_sequences, arguments=_torch_layer, choices=_CHOICES),
    "decoder": Variant(
        TransformerDecoder,
        "torch.nn:TransformerDecoder",
        {**_LAYER, "num_layers": 2},
        _two_sequences,
        arguments=_torch_layer,
        choices=_CHOICES,
        layer=_DECODER_LAYER,
    ),
    "transformer": Variant(
        Transformer,
        "torch.nn:Transformer",
        {**_LAYER, "num_encoder_layers": 2, "num_decoder_layers": 2},
        _source_and_target,
        arguments=_torch_stacks,
        choices=_CHOICES,
    ),
    "sinusoidal": Variant(
        SinusoidalPositionalEncoding,
        "torchref:SinusoidalPositionalEncoding",
        {**_WIDTH, "max_len": 5000},
        _one_sequence,
    ),
}


#: Every name with PyTorch's class, for messages.
KNOWN = ", ".join(f"{name} ({variant.torch_class.partition(':')[2]})" for name, variant in VARIANTS.items())


def variant_named(name: str) -> Variant:
    """The variant of that name, for a command's argument.

    Raises:
        typer.BadParameter: an unknown name; the message lists the names. Exit code 2.
    """
    if name not in VARIANTS:
        classes = {variant.torch_class.partition(":")[2]: known for known, variant in reversed(VARIANTS.items())}
        raise typer.BadParameter(f"unknown variant {name!r}{did_you_mean(name, VARIANTS, classes)}; known are {KNOWN}.")
    return VARIANTS[name]


def did_you_mean(name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """ ", did you mean …?" where a known name is near, in any spelling; `others`: further names → the known ones."""
    spellings = {key.lower().replace("-", "_"): key for key in known} | {
        other.lower(): key for other, key in (others or {}).items()
    }
    near = difflib.get_close_matches(name.lower().replace("-", "_")[:100], spellings, n=3, cutoff=0.7)
    names = list(dict.fromkeys(spellings[spelling] for spelling in near))
    return f", did you mean {' or '.join(names)}?" if names else ""
