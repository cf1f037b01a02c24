"""What the tests of capture look into: small modules with every weight random, made without compiling."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxattn.transformer.encoder import TransformerEncoder, TransformerEncoderLayer
from jaxattn.variants.multi_head import MultiHeadSelfAttention

B, T, D, N, H = 3, 5, 14, 2, 7
#: Of sums of a few dozen float32 numbers of size 1 to 10.
ROUNDING = 2e-5


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def make(build) -> Any:
    """The module that `build` returns."""
    module, rng = nnx.eval_shape(build), np.random.default_rng(1)
    state = nnx.state(module)
    nnx.update(module, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, leaf.dtype), state))
    return module


def make_encoder() -> Any:
    return make(lambda: TransformerEncoder(TransformerEncoderLayer(D, N, 11, batch_first=True, rngs=nnx.Rngs(0)), 2))


def make_attention() -> Any:
    return make(lambda: MultiHeadSelfAttention(D, N, rngs=nnx.Rngs(0)))


def make_linear() -> Any:
    return make(lambda: nnx.Linear(D, D, rngs=nnx.Rngs(0)))


def in_float64(*arrays) -> list[np.ndarray]:
    return [np.asarray(array, np.float64) for array in arrays]


class Stack(nnx.Module):
    """`first`, then `inner` as `how(inner, x)` calls it."""

    def __init__(self, how, inner: nnx.Module | None = None):
        self.first = make(lambda: nnx.LayerNorm(D, rngs=nnx.Rngs(0)))
        self.inner = make_linear() if inner is None else inner
        self.how = how

    def __call__(self, x):
        return self.how(self.inner, self.first(x))
