"""Signatures of torch.nn.MultiheadAttention."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from .covering import Combination, covering, words
from .drawing import Call, Signature
from .masks import LAYOUTS, MASKS, PADDINGS, attention_mask, padding_mask, sequence

OPTIONS = {
    "heads": ((2, 5), (1, 7), (6, 1)),
    "widths": ("embed_dim", "kdim", "vdim", "kdim and vdim"),
    "bias": (True, False),
    "add_bias_kv": (False, True),
    "add_zero_attn": (False, True),
    "layout": LAYOUTS,
    "inputs": ("apart", "key is value", "self"),
    "attn_mask": MASKS,
    "padding": PADDINGS,
    "returned": ("mean", "heads", "nothing"),
    "training": (False, True),
}


@dataclass(frozen=True)
class Sizes:
    batch: int = 3
    length_q: int = 8
    length_kv: int = 11
    kdim: int = 13
    vdim: int = 17


def allowed(options: Combination) -> bool:
    """One array for several inputs needs one width; and not where torch hides appended columns behind a causal mask."""
    widths = {"self": ("embed_dim",), "key is value": ("embed_dim", "kdim and vdim")}
    appended = options["add_bias_kv"] or options["add_zero_attn"]
    dropped = options["returned"] == "nothing" and options["padding"] == "none"
    hidden = options["attn_mask"].startswith("causal") and dropped and appended
    return not hidden and options["widths"] in widths.get(options["inputs"], OPTIONS["widths"])


def signature(options: Combination, sizes: Sizes = Sizes()) -> Signature:
    heads, width = options["heads"]
    embed_dim = heads * width
    kdim = sizes.kdim if options["widths"].startswith("kdim") else embed_dim
    vdim = sizes.vdim if options["widths"].endswith("vdim") else embed_dim
    if options["inputs"] == "key is value":
        vdim = kdim
    build = partial(
        nn.MultiheadAttention,
        embed_dim,
        heads,
        0.25 if options["training"] else 0.0,
        options["bias"],
        options["add_bias_kv"],
        options["add_zero_attn"],
        kdim,
        vdim,
        options["layout"] == "batch first",
    )

    def call(rng: np.random.Generator, empty: bool) -> Call:
        given = partial(sequence, rng, options["layout"], sizes.batch)
        query = given(sizes.length_q, embed_dim)
        length = sizes.length_q if options["inputs"] == "self" else sizes.length_kv
        key = query if options["inputs"] == "self" else given(length, kdim)
        value = given(length, vdim) if options["inputs"] == "apart" else key
        batch = None if options["layout"] == "unbatched" else sizes.batch
        all_heads = heads * (batch or 1)
        masks = {
            "attn_mask": attention_mask(options["attn_mask"], rng, all_heads, sizes.length_q, length, empty=empty),
            "key_padding_mask": padding_mask(options["padding"], rng, batch, length, empty=empty),
        }
        flags = {
            "need_weights": options["returned"] != "nothing",
            "average_attn_weights": options["returned"] == "mean",
            "is_causal": options["attn_mask"].startswith("causal"),
        }
        constant = ("attn_mask",) if flags["is_causal"] else ()
        masks = {name: mask for name, mask in masks.items() if mask is not None}
        return Call((query, key, value), {**masks, **flags}, empty, constant)

    return Signature(f"multihead: {words(options, OPTIONS)}", build, call, options["training"])


COMBINATIONS = covering(OPTIONS, allowed, 24, seed=0)
