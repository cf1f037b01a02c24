"""Attention whose logits come from one linear layer over the concatenated query and key."""

import jax.numpy as jnp
from flax import nnx

from .._checks import check_features, check_length, check_same_batch, check_sizes
from .._typing import ArrayLike, DType, Precision
from ..convert.registry import register
from ..core.dot_product import AttentionOutput
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array
from ..core.record import record
from ..core.softmax import masked_softmax
from ..layers import linear


@register("torchref.variants.my_attn.MyAttn")
class MyAttn(nnx.Module):
    """weights = softmax(attn([Q; K])), output = attn_combine([Q; weights · V]).

    The logits depend on position only through the rows of `attn`, so the number of values S is fixed by the weights.

    Args:
        query_size: width of the query, in features.
        key_size: width of the key, in features.
        value_size1: S, the number of value rows (words).
        value_size2: V, the width of one value row, in features.
        output_size: width of the output, in features.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Reference: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, in the form of PyTorch's tutorial on
    sequence-to-sequence translation (Robertson 2017, `AttnDecoderRNN`).
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size1: int,
        value_size2: int,
        output_size: int,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(query_size=query_size, key_size=key_size, output_size=output_size)
        check_sizes(value_size1=value_size1, value_size2=value_size2)
        options = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        self.query_size, self.key_size, self.output_size = query_size, key_size, output_size
        self.value_size1, self.value_size2 = value_size1, value_size2
        self.precision = precision
        self.attn = linear(query_size + key_size, value_size1, **options)
        self.attn_combine = linear(query_size + value_size2, output_size, **options)

    def __call__(self, Q: ArrayLike, K: ArrayLike, V: ArrayLike) -> AttentionOutput:
        """Q [*B, 1, query_size], K [*B, 1, key_size], V [*B, S, V] → output [*B, 1, output_size], weights [*B, S].

        Raises:
            ValueError: more than one row in Q or K, a V without value_size1 rows, widths or batch axes that differ.
        """
        Q, K, V = as_array(Q), as_array(K), as_array(V)
        check_features("Q", Q, self.query_size, "[*B, 1, query_size]")
        check_features("K", K, self.key_size, "[*B, 1, key_size]")
        check_features("V", V, self.value_size2, "[*B, value_size1, value_size2]")
        check_length("Q", Q, 1)
        check_length("K", K, 1)
        check_length("V", V, self.value_size1)
        check_same_batch(Q=Q, K=K, V=V)
        logits = self.attn(jnp.concatenate([Q, K], axis=-1))  # *B 1 S
        dtype = logits.dtype
        weights = masked_softmax(logits.astype(at_least_float32(dtype))).astype(dtype)
        record("logits", logits)
        record("weights", weights)
        applied = jnp.matmul(weights, V.astype(dtype), precision=self.precision)  # *B 1 V
        output = self.attn_combine(jnp.concatenate([Q.astype(dtype), applied], axis=-1))
        return AttentionOutput(output, weights[..., 0, :])
