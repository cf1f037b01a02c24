"""THE table of cases: every configured variant that every law walks."""

from collections.abc import Callable
from functools import partial

import numpy as np
import transformers
from torch import nn

import torchref

from .case import Case as Case
from .case import Input as Input
from .case import drawn, keep_mask, normal
from .case import torch_arguments as torch_arguments
from .inputs import B, D, H, S, T, V

N = 2
E = N * H


def brief_mask(keep: np.ndarray) -> dict[str, Input]:
    return {"mask": Input(keep.astype(np.int32), "B T S")}


def torch_mask(keep: np.ndarray) -> dict[str, Input]:
    return {"attn_mask": Input(np.repeat(~keep, N, axis=0), "BN T S")}


def encoder_mask(name: str) -> Callable[[np.ndarray], dict[str, Input]]:
    return lambda keep: {name: Input(np.repeat(~keep, N, axis=0), "BN T S")}


my_attn = Case(
    "my_attn/batch",
    partial(torchref.MyAttn, H, V, S, D, T),
    drawn(normal(B, 1, H, axes="B _ D"), normal(B, 1, V, axes="B _ D"), normal(B, S, D, axes="B S D")),
    ("B _ D", "B S"),
)
scaled = partial(
    Case,
    torch_module=partial(torchref.ScaledDotProductSelfAttention, D),
    inputs=drawn(normal(B, T, D, axes="B T D")),
    output_axes=("B T D", "B T S"),
    mask=brief_mask,
)
self_attention = partial(
    Case,
    torch_module=partial(torchref.MultiHeadSelfAttention, E, N),
    inputs=drawn(normal(B, T, E, axes="B T D")),
    output_axes=("B T D", "B N T S"),
    mask=brief_mask,
)
cross_attention = partial(
    Case,
    torch_module=partial(torchref.MultiHeadCrossAttention, E, N, V),
    inputs=drawn(normal(B, T, E, axes="B T D"), normal(B, S, V, axes="B S D")),
    output_axes=("B T D", "B N T S"),
    mask=brief_mask,
    sources=(1,),
    is_self=False,
)


def multihead(
    name: str, *, kdim: int = E, vdim: int = E, first: bool = True, flags: dict | None = None, **options
) -> Case:
    """nn.MultiheadAttention from a sequence of T to one of S."""
    flags = flags or {}

    def sequence(length: int, width: int, axis: str) -> Callable[[np.random.Generator], Input]:
        if first:
            return normal(B, length, width, axes=f"B {axis} D")
        return normal(length, B, width, axes=f"{axis} B D")

    weights = "B T S" if flags.get("average_attn_weights", True) else "B N T S"
    arrays = options.pop("arrays", lambda rng: {})
    return Case(
        f"multihead_torch/{name}",
        partial(nn.MultiheadAttention, E, N, kdim=kdim, vdim=vdim, batch_first=first, **options),
        drawn(sequence(T, E, "T"), sequence(S, kdim, "S"), sequence(S, vdim, "S")),
        ("B T D" if first else "T B D", weights) if flags.get("need_weights", True) else ("B T D",),
        arrays,
        flags,
        mask=torch_mask,
        sources=(1, 2),
        is_self=False,
    )


def encoder_layer(name: str, *, first: bool = True, arrays=lambda rng: {}, **options) -> Case:
    axes = "B T D" if first else "T B D"
    shape = (B, T, E) if first else (T, B, E)
    return Case(
        f"encoder/{name}",
        partial(nn.TransformerEncoderLayer, E, N, D, batch_first=first, **options),
        drawn(normal(*shape, axes=axes)),
        (axes,),
        arrays,
        mask=encoder_mask("src_mask"),
    )


def encoder_stack(name: str, norm: bool) -> Case:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(E, N, D, batch_first=True, activation="gelu")
        return nn.TransformerEncoder(layer, 2, nn.LayerNorm(E) if norm else None, enable_nested_tensor=False)

    return Case(f"encoder/{name}", build, drawn(normal(B, T, E, axes="B T D")), ("B T D",), mask=encoder_mask("mask"))


def decoding(name: str, build: Callable[[], nn.Module], arrays: Callable[..., dict[str, Input]], **options) -> Case:
    """From a sequence of T to a memory or source of S."""
    inputs = (normal(B, T, E, axes="B T D"), normal(B, S, E, axes="B S D"))
    inputs = reversed(inputs) if name.startswith("transformer") else inputs
    return Case(name, build, drawn(*inputs), ("B T D",), arrays, is_self=False, **options)


def decoder_stack() -> nn.Module:
    layer = nn.TransformerDecoderLayer(E, N, D, batch_first=True, activation="gelu", layer_norm_eps=1e-3)
    return nn.TransformerDecoder(layer, 1, nn.LayerNorm(E))


def decoder_masks(rng: np.random.Generator) -> dict[str, Input]:
    return {
        "tgt_mask": Input(~np.tri(T, dtype=bool), "T S"),
        "memory_key_padding_mask": Input(np.arange(S) >= np.array([[4], [7], [6]]), "B S"),
    }


def transformer_masks(rng: np.random.Generator) -> dict[str, Input]:
    return {
        "src_key_padding_mask": Input(np.arange(S) >= np.array([[5], [3], [7]]), "B S"),
        "tgt_mask": Input(~np.tri(T, dtype=bool), "T S"),
        "memory_mask": Input(rng.normal(size=(T, S)).astype(np.float32), "T S"),
    }


def small_bert() -> nn.Module:
    """The oracle of models/bert.py is transformers' own, in its eager attention."""
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=E,
        num_hidden_layers=1,
        num_attention_heads=N,
        intermediate_size=D,
        max_position_embeddings=H,
    )
    config._attn_implementation = "eager"
    return transformers.BertModel(config)


def float_mask(rng: np.random.Generator) -> dict[str, Input]:
    return {
        "attn_mask": Input(rng.normal(size=(T, S)).astype(np.float32), "T S"),
        "key_padding_mask": Input(np.where(rng.random((B, S)) < 0.3, -np.inf, 0.5).astype(np.float32), "B S"),
    }


def padding_and_mask(rng: np.random.Generator) -> dict[str, Input]:
    return {
        "key_padding_mask": Input(np.arange(S) >= np.array([[4], [7], [6]]), "B S"),
        "attn_mask": Input(np.repeat(~keep_mask(rng, B, T, S) & (np.arange(S) > 1), N, axis=0), "BN T S"),
    }


CASES = [
    my_attn,
    scaled("scaled_dot_product/plain"),
    scaled(
        "scaled_dot_product/mask_empty_row",
        arrays=lambda rng: brief_mask(keep_mask(rng, B, T, T) & (np.arange(T) != 3)[:, None]),
    ),
    scaled("scaled_dot_product/float_mask", arrays=lambda rng: {"mask": Input(np.tri(T, dtype=np.float32), "T S")}),
    self_attention("multi_head/self"),
    self_attention("multi_head/self_causal", arrays=lambda rng: {"mask": Input(np.tri(T, dtype=bool), "T S")}),
    self_attention(
        "multi_head/self_head_mask",
        arrays=lambda rng: {"mask": Input(keep_mask(rng, B, N, T, T), "B N T S")},
    ),
    cross_attention(
        "multi_head/cross",
        torch_module=partial(torchref.MultiHeadCrossAttention, E, N),
        inputs=drawn(normal(B, T, E, axes="B T D"), normal(B, S, E, axes="B S D")),
    ),
    cross_attention("multi_head/cross_mask", arrays=lambda rng: brief_mask(keep_mask(rng, B, T, S))),
    cross_attention(
        "multi_head/cross_empty_row",
        arrays=lambda rng: brief_mask(keep_mask(rng, B, T, S) & (np.arange(T) != 2)[:, None]),
    ),
    multihead("plain"),
    multihead("sequence_first", first=False),
    multihead("kdim_vdim", kdim=V, vdim=D),
    multihead("no_bias", bias=False),
    multihead("per_head_weights", flags={"average_attn_weights": False}),
    multihead("no_weights", flags={"need_weights": False}),
    multihead("float_mask", arrays=float_mask),
    multihead("bool_masks", arrays=padding_and_mask, flags={"average_attn_weights": False}),
    multihead("appended_rows", add_bias_kv=True, add_zero_attn=True, arrays=padding_and_mask),
    Case(
        "sinusoidal/even",
        partial(torchref.SinusoidalPositionalEncoding, E),
        drawn(normal(B, T, E, axes="B T D")),
        ("B T D",),
    ),
    Case(
        "sinusoidal/odd",
        partial(torchref.SinusoidalPositionalEncoding, D),
        drawn(normal(B, T, D, axes="B T D")),
        ("B T D",),
    ),
    encoder_layer(
        "post_norm_relu_float_mask",
        arrays=lambda rng: {"src_mask": Input(rng.normal(size=(T, T)).astype(np.float32), "T S")},
    ),
    encoder_layer("pre_norm_gelu", norm_first=True, activation="gelu"),
    encoder_layer(
        "sequence_first_no_bias", first=False, bias=False, layer_norm_eps=1e-3, activation=nn.functional.silu
    ),
    encoder_layer(
        "padding",
        arrays=lambda rng: {"src_key_padding_mask": Input(np.arange(T) >= np.array([[4], [5], [3]]), "B S")},
    ),
    Case(
        "bert/padding",
        small_bert,
        lambda rng: (Input(rng.integers(0, 31, (B, T)), "B T"),),
        ("B T D", "B D"),
        lambda rng: {"attention_mask": Input((np.arange(T) < [[4], [5], [2]]).astype(np.int64), "B S")},
    ),
    encoder_stack("stack", norm=False),
    encoder_stack("stack_norm", norm=True),
    decoding(
        "decoder/pre_norm_masks",
        partial(nn.TransformerDecoderLayer, E, N, D, batch_first=True, norm_first=True, bias=False),
        decoder_masks,
        mask=encoder_mask("memory_mask"),
        sources=(1,),
    ),
    decoding("decoder/stack_norm", decoder_stack, lambda rng: {}, mask=encoder_mask("memory_mask"), sources=(1,)),
    decoding(
        "transformer/masks",
        partial(nn.Transformer, E, N, 1, 1, D, activation="gelu", batch_first=True),
        transformer_masks,
    ),
]
WEIGHTED = [case for case in CASES if case.output_axes[-1].endswith("S")]
MASKED = [case for case in CASES if case.mask is not None]
