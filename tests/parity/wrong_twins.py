"""Flax classes that make one mistake each, to be put in the place of right ones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxattn
from jaxattn.core.activations import gelu_tanh
from jaxattn.variants.multi_head import MultiHeadCrossAttention, MultiHeadSelfAttention


def become(module: Any, kind: type) -> None:
    """Let the module compute as `kind`, a subclass of its class, does."""
    module.__class__ = kind


class PlainAttention(MultiHeadSelfAttention):
    """Self-attention written out, right if nothing is overridden; it records nothing."""

    def split(self, features: jax.Array) -> jax.Array:
        return jnp.moveaxis(features.reshape(*features.shape[:-1], self.num_heads, -1), -2, -3)

    def logits(self, q: jax.Array, k: jax.Array) -> jax.Array:
        return q @ jnp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])

    def allowed(self, mask: Any, lengths: tuple[int, int]) -> Any:
        return jnp.ones(lengths, bool) if mask is None else jnp.asarray(mask) != 0

    def softmax(self, logits: jax.Array) -> jax.Array:
        return jax.nn.softmax(logits)

    def __call__(self, x, mask=None):
        return self.plain(x, x, mask)

    def plain(self, x, context, mask):
        x, context = jnp.asarray(x), jnp.asarray(context)
        q, k, v = (self.split(layer(y)) for layer, y in ((self.Wq, x), (self.Wk, context), (self.Wv, context)))
        logits = self.logits(q, k)
        weights = self.softmax(jnp.where(self.allowed(mask, (x.shape[-2], context.shape[-2])), logits, -1e9))
        merged = jnp.moveaxis(weights @ v, -3, -2)
        return jaxattn.AttentionOutput(self.W_o(merged.reshape(*merged.shape[:-2], -1)), weights)


class InvertedMask(PlainAttention):
    def allowed(self, mask, lengths):
        return ~super().allowed(mask, lengths)


class TransposedMask(PlainAttention):
    def allowed(self, mask, lengths):
        return jnp.swapaxes(super().allowed(mask, lengths), -1, -2)


class IgnoredMask(PlainAttention):
    def allowed(self, mask, lengths):
        return super().allowed(None, lengths)


class AddedCausal(PlainAttention):
    def allowed(self, mask, lengths):
        return super().allowed(mask, lengths) & np.tri(*lengths, dtype=bool)


class StrictlyCausal(PlainAttention):
    def allowed(self, mask, lengths):
        return np.tri(*lengths, 1, dtype=bool)


class Unscaled(PlainAttention):
    def logits(self, q, k):
        return q @ jnp.swapaxes(k, -1, -2)


class ScaledByWidth(PlainAttention):
    def logits(self, q, k):
        return q @ jnp.swapaxes(k, -1, -2) / math.sqrt(self.embed_dim)


class Capped(PlainAttention):
    def logits(self, q, k):
        return 5.0 * jnp.tanh(super().logits(q, k) / 5.0)


class SoftmaxOverQueries(PlainAttention):
    def softmax(self, logits):
        return jax.nn.softmax(logits, axis=-2)


class InterleavedSplit(PlainAttention):
    def split(self, features):
        return jnp.moveaxis(features.reshape(*features.shape[:-1], -1, self.num_heads), -1, -3)


class KeysForQueries(PlainAttention):
    def logits(self, q, k):
        return super().logits(k, q)


class ZeroRows(PlainAttention):
    def softmax(self, logits):
        return jnp.where((logits <= -1e9).all(axis=-1, keepdims=True), 0.0, super().softmax(logits))


class DroppedWeights(PlainAttention):
    """Drops the weights with rate 0.25 in every call, the same ones each time."""

    def softmax(self, logits):
        weights = super().softmax(logits)
        keep = np.random.default_rng(0).random(weights.shape) >= 0.25
        return jnp.where(keep, weights / 0.75, 0.0)


class BottomRight(MultiHeadCrossAttention):
    """Aligns the causal mask that torch has top-left with the last key."""

    def __call__(self, x, context, mask=None):
        x, context = jnp.asarray(x), jnp.asarray(context)
        lengths = (x.shape[-2], context.shape[-2])
        return super().__call__(x, context, np.tri(*lengths, lengths[1] - lengths[0], dtype=bool))


class InvertedPadding(jaxattn.MultiheadAttention):
    def __call__(self, query, key, value, key_padding_mask=None, **named):
        return super().__call__(query, key, value, ~jnp.asarray(key_padding_mask), **named)


class OtherHeadOrderOfMask(jaxattn.MultiheadAttention):
    """Reads [B·N, T, S] as n·B + b."""

    def __call__(self, query, key, value, attn_mask=None, **named):
        mask = jnp.asarray(attn_mask)
        turned = mask.reshape(self.num_heads, -1, *mask.shape[1:]).swapaxes(0, 1).reshape(mask.shape)
        return super().__call__(query, key, value, attn_mask=turned, **named)


class _Layer(jaxattn.TransformerEncoderLayer):
    self_attn: Any
    norm1: Any
    norm2: Any

    def attended(self, x, src_mask, src_key_padding_mask):
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        return self.self_attn(x, x, x, need_weights=False, **masks).output

    def fed(self, x):
        return self.linear2(self.activation(self.linear1(x)))


class NoResidual(_Layer):
    def __call__(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False, **named):
        y = self.norm1(self.attended(src, src_mask, src_key_padding_mask))
        return self.norm2(y + self.fed(y))


class NoSecondNorm(_Layer):
    def __call__(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False, **named):
        y = self.norm1(src + self.attended(src, src_mask, src_key_padding_mask))
        return y + self.fed(y)


class TanhInside(_Layer):
    def fed(self, x):
        return self.linear2(gelu_tanh(self.linear1(x)))

    def __call__(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False, **named):
        y = self.norm1(src + self.attended(src, src_mask, src_key_padding_mask))
        return self.norm2(y + self.fed(y))


class DroppedOutput(nnx.Linear):
    """Another dropout of its output in every call."""

    def __call__(self, inputs, out_sharding=None):
        rng = np.random.default_rng(id(object()) % 2**32)
        outputs = super().__call__(inputs)
        return jnp.where(rng.random(outputs.shape) < 0.5, 2 * outputs, 0.0)


class OtherEpsilon(nnx.LayerNorm):
    """Says one epsilon and uses another."""

    def __call__(self, x, **named):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        assert self.scale is not None and self.bias is not None
        return centred / jnp.sqrt(variance + 1e-3) * self.scale[...] + self.bias[...]


class FromOne(jaxattn.SinusoidalPositionalEncoding):
    """Counts positions from one."""

    def __call__(self, x):
        x = jnp.asarray(x)
        longer = jnp.concatenate([jnp.zeros_like(x[..., :1, :]), x], axis=-2)
        return super().__call__(longer)[..., 1:, :]


class BiasForgotten(nnx.Linear):
    def __call__(self, inputs, out_sharding=None):
        return inputs @ self.kernel[...]


class Raises(nnx.Linear):
    def __call__(self, inputs, out_sharding=None):
        raise ValueError("no such axis")
