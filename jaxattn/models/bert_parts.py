"""The parts of BERT: embeddings, encoder layer, pooler."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._typing import DType, Precision
from ..convert.rules import Constant
from ..core.dropout import dropout
from ..layers import Embedding, LayerNorm, dropout_key, linear
from ..transformer.encoder import TransformerEncoderLayer
from .bert_config import BertConfig


class BertEmbeddings(nnx.Module):
    """LayerNorm(word + type + position), each a row of its table."""

    def __init__(self, config: BertConfig, *, dtype: DType, param_dtype: DType, rngs: nnx.Rngs):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.config = config
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size, **options)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size, **options)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size, **options)
        self.LayerNorm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps, **options)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
    ) -> jax.Array:
        """input_ids [*B, T], the others [*B, T] or [T] → [*B, T, D]."""
        words = self.word_embeddings(input_ids)
        pad = self.config.pad_token_id
        if pad is not None:
            words = jnp.where((input_ids == pad)[..., None], jax.lax.stop_gradient(words), words)
        types, positions = self.token_type_embeddings(token_type_ids), self.position_embeddings(position_ids)
        x = words + jnp.broadcast_to(types, words.shape) + jnp.broadcast_to(positions, words.shape)
        return drop(self.LayerNorm(x), self.config.hidden_dropout_prob, deterministic, rngs)

    def torch_constants(self) -> list[Constant]:
        length = self.config.max_position_embeddings
        zeros = np.zeros(length, np.int64)
        return [Constant("position_ids", np.arange(length)), Constant("token_type_ids", zeros)]


class BertLayer(TransformerEncoderLayer):
    """norm2(y + linear2(activation(linear1(y)))), y = norm1(x + self_attn(x)).

    Unlike its parent it drops nothing after the activation, and the attention weights have a rate of their own.
    """

    def __init__(self, config: BertConfig, *, dtype: DType, param_dtype: DType, precision: Precision, rngs: nnx.Rngs):
        super().__init__(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            config.hidden_dropout_prob,
            config.hidden_act,
            config.layer_norm_eps,
            batch_first=True,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            rngs=rngs,
        )
        self.self_attn.dropout = config.attention_probs_dropout_prob
        self.dropout.rate = 0.0


class BertPooler(nnx.Module):
    """tanh(dense(first token))."""

    def __init__(self, config: BertConfig, *, dtype: DType, param_dtype: DType, precision: Precision, rngs: nnx.Rngs):
        width = config.hidden_size
        self.dense = linear(width, width, dtype=dtype, param_dtype=param_dtype, precision=precision, rngs=rngs)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        """hidden_states [*B, T, D] → [*B, D]."""
        return jnp.tanh(self.dense(hidden_states[..., 0, :]))


def drop(inputs: jax.Array, rate: float, deterministic: bool, rngs: nnx.Rngs | None) -> jax.Array:
    return inputs if deterministic or not rate else dropout(inputs, rate, rng=dropout_key(rngs))
