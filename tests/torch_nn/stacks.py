"""Signatures of torch.nn's Transformer classes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from .covering import Combination, switched, words
from .drawing import Call, Signature
from .masks import LAYOUTS, PADDINGS, attention_mask, padding_mask, sequence

MASKS = ("none", "bool", "float by head", "causal")
COMMON = {"layout": LAYOUTS, "norm_first": (False, True), "bias": (True, False), "training": (False, True)}
ENCODING = {"src_mask": MASKS, "src_key_padding_mask": PADDINGS}
DECODING = {
    "tgt_mask": MASKS,
    "memory_mask": MASKS,
    "tgt_key_padding_mask": PADDINGS,
    "memory_key_padding_mask": PADDINGS,
}
#: Number of layers, and whether a norm follows.
STACK = {"stack": ((1, False), (1, True), (2, True))}
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "TransformerEncoderLayer": {**COMMON, **ENCODING},
    "TransformerEncoder": {**COMMON, **STACK, "mask": MASKS, "src_key_padding_mask": PADDINGS},
    "TransformerDecoderLayer": {**COMMON, **DECODING},
    "TransformerDecoder": {**COMMON, **STACK, **DECODING},
    "Transformer": {**COMMON, **ENCODING, **DECODING},
}
#: These take their values in turn.
SETTINGS = {
    "heads": ((2, 5), (1, 7)),
    "layer_norm_eps": (1e-5, 0.1, 1e-5),
    "activation": ("relu", "gelu", nn.functional.silu, nn.PReLU()),
}
#: Mask → the promise about it.
PROMISES = {
    "src_mask": {"TransformerEncoderLayer": "is_causal", "Transformer": "src_is_causal"},
    "mask": {"TransformerEncoder": "is_causal"},
    "tgt_mask": dict.fromkeys(OPTIONS, "tgt_is_causal"),
    "memory_mask": dict.fromkeys(OPTIONS, "memory_is_causal"),
}


@dataclass(frozen=True)
class Sizes:
    batch: int = 3
    length_q: int = 8
    length_kv: int = 11
    hidden: int = 13


def build(name: str, options: Combination, sizes: Sizes) -> nn.Module:
    heads, width = options["heads"]
    embed_dim = heads * width
    common = {
        "dropout": 0.25 if options["training"] else 0.0,
        "layer_norm_eps": options["layer_norm_eps"],
        "batch_first": options["layout"] == "batch first",
        "norm_first": options["norm_first"],
        "bias": options["bias"],
        "activation": options["activation"],
    }
    if isinstance(options["activation"], nn.Module) and not name.endswith("Layer"):
        common["activation"] = "gelu"  # torch's own copies of a layer lose a module
    if name == "Transformer":
        return nn.Transformer(embed_dim, heads, 1, 1, sizes.hidden, **common)
    layer = getattr(nn, name.removesuffix("Layer") + "Layer")(embed_dim, heads, sizes.hidden, **common)
    if name.endswith("Layer"):
        return layer
    layers, with_norm = options["stack"]
    norm = nn.LayerNorm(embed_dim) if with_norm else None
    nested = {"enable_nested_tensor": False} if name == "TransformerEncoder" else {}
    return getattr(nn, name)(layer, layers, norm, **nested)


def signature(name: str, options: Combination, sizes: Sizes = Sizes()) -> Signature:
    heads, width = options["heads"]
    batch = None if options["layout"] == "unbatched" else sizes.batch
    encoder = "Encoder" in name
    lengths = {"tgt": sizes.length_q, "src": sizes.length_q if encoder else sizes.length_kv}
    lengths = {**lengths, "mask": lengths["src"], "memory": lengths["tgt"]}

    def mask(place: str, rng: np.random.Generator, empty: bool) -> np.ndarray | None:
        """Of the mask argument `place`."""
        of = place.split("_")[0]
        source = sizes.length_kv if of == "memory" else lengths[of]
        if place.endswith("key_padding_mask"):
            return padding_mask(options[place], rng, batch, source, empty=empty)
        return attention_mask(options[place], rng, heads * (batch or 1), lengths[of], source, empty=empty)

    def call(rng: np.random.Generator, empty: bool) -> Call:
        given = partial(sequence, rng, options["layout"], sizes.batch)
        tgt, src = (given(lengths[of], heads * width) for of in ("tgt", "src"))
        inputs = (src,) if encoder else (src, tgt) if name == "Transformer" else (tgt, src)
        masks = {place: mask(place, rng, empty) for place in OPTIONS[name] if place.endswith("mask")}
        masks = {place: array for place, array in masks.items() if array is not None}
        causal = [place for place in masks if options[place].startswith("causal")]
        promises = {PROMISES[place][name]: True for place in causal}
        return Call(inputs, {**masks, **promises}, empty, tuple(causal))

    title = f"{name}: {words(options, OPTIONS[name])}"
    return Signature(title, partial(build, name, options, sizes), call, options["training"])


def with_settings(combinations: list[Combination]) -> list[Combination]:
    turns = enumerate(combinations)
    return [{**{name: v[turn % len(v)] for name, v in SETTINGS.items()}, **options} for turn, options in turns]


COMBINATIONS = {name: with_settings(switched(options, 6, seed=0)) for name, options in OPTIONS.items()}
