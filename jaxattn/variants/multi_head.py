"""Multi-head attention within one sequence, and from one sequence to another."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_divisible, check_features, check_same_batch, check_sizes
from .._typing import ArrayLike, DType, Precision
from ..convert.registry import register
from ..core.dot_product import AttentionOutput, dot_product_attention
from ..core.heads import merge_heads, split_heads
from ..core.mask_arrays import as_array, from_nonzero, insert_head_axis
from ..core.masks import Mask
from ..layers import linear


class _MultiHead(nnx.Module):
    """Wq, Wk, Wv, W_o and the attention between them; the subclasses say where queries, keys and values come from."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kv_dim: int,
        *,
        dtype: DType,
        param_dtype: DType,
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        check_divisible(num_heads=num_heads, embed_dim=embed_dim)
        check_sizes(kv_dim=kv_dim)
        options = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.precision = precision
        self.Wq = linear(embed_dim, embed_dim, **options)
        self.Wk = linear(kv_dim, embed_dim, **options)
        self.Wv = linear(kv_dim, embed_dim, **options)
        self.W_o = linear(embed_dim, embed_dim, **options)

    def attend(self, inputs_q: jax.Array, inputs_kv: jax.Array, mask: ArrayLike | Mask | None) -> AttentionOutput:
        if mask is not None and not isinstance(mask, Mask):
            mask = insert_head_axis(from_nonzero(mask), inputs_q.ndim - 2)
        q = split_heads(self.Wq(inputs_q), self.num_heads)
        k = split_heads(self.Wk(inputs_kv), self.num_heads)
        v = split_heads(self.Wv(inputs_kv), self.num_heads)
        output, weights = dot_product_attention(
            q, k, v, mask=mask, empty_row="uniform", return_weights=True, precision=self.precision
        )
        return AttentionOutput(self.W_o(merge_heads(output)), weights)


@register("torchref.variants.multi_head.MultiHeadSelfAttention")
class MultiHeadSelfAttention(_MultiHead):
    """output = W_o(concat over heads of softmax(qₙ kₙᵀ / √H, where mask) vₙ), H = embed_dim / num_heads.

    Head n is the n-th consecutive slice of Wq(x), Wk(x), Wv(x).

    Args:
        embed_dim: D, width of inputs and outputs, in features.
        num_heads: N; must divide embed_dim.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Raises:
        ValueError: num_heads does not divide embed_dim.

    Reference: Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            embed_dim, num_heads, embed_dim, dtype=dtype, param_dtype=param_dtype, precision=precision, rngs=rngs
        )

    def __call__(self, x: ArrayLike, mask: ArrayLike | Mask | None = None) -> AttentionOutput:
        """x [*B, L, D] → output [*B, L, D], weights [*B, N, L, L].

        Args:
            x: the sequence.
            mask: any dtype, non-zero = may attend, 0 = blocked: [L, L] for all, [*B, L, L] for each example, or
                [*B, N, L, L] with heads, sizes of 1 allowed. A padding mask over keys (B, L) is
                `mask[:, None, None, :]`. A fully blocked row attends uniformly, as filling with −1e9 makes it.
                A mask of jaxattn.masks is taken, too.

        Raises:
            ValueError: shapes or a mask rank that do not fit; a float mask holding a negative value (outside jit).
        """
        x = as_array(x)
        check_features("x", x, self.embed_dim, "[*B, L, embed_dim]")
        return self.attend(x, x, mask)


@register("torchref.variants.multi_head.MultiHeadCrossAttention")
class MultiHeadCrossAttention(_MultiHead):
    """output = W_o(concat over heads of softmax(qₙ kₙᵀ / √H, where mask) vₙ), q from x, k and v from context.

    Args:
        embed_dim: D, width of x and of the output, in features.
        num_heads: N; must divide embed_dim.
        kv_dim: width of context, in features; None is embed_dim.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Raises:
        ValueError: num_heads does not divide embed_dim.

    Reference: Vaswani et al. 2017, section 3.2.3 (encoder-decoder attention), https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kv_dim: int | None = None,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        self.kv_dim = embed_dim if kv_dim is None else kv_dim
        super().__init__(
            embed_dim, num_heads, self.kv_dim, dtype=dtype, param_dtype=param_dtype, precision=precision, rngs=rngs
        )

    def __call__(self, x: ArrayLike, context: ArrayLike, mask: ArrayLike | Mask | None = None) -> AttentionOutput:
        """x [*B, T, D], context [*B, S, kv_dim] → output [*B, T, D], weights [*B, N, T, S].

        Args:
            x: the sequence that asks (decoder).
            context: the sequence that is read (encoder).
            mask: any dtype, non-zero = may attend, 0 = blocked: [T, S] for all, [*B, T, S] for each example, or
                [*B, N, T, S] with heads, sizes of 1 allowed. A padding mask over keys (B, S) is
                `mask[:, None, None, :]`. A fully blocked row attends uniformly, as filling with −1e9 makes it.
                A mask of jaxattn.masks is taken, too.

        Raises:
            ValueError: shapes or a mask rank that do not fit; a float mask holding a negative value (outside jit).
        """
        x, context = as_array(x), as_array(context)
        check_features("x", x, self.embed_dim, "[*B, T, embed_dim]")
        check_features("context", context, self.kv_dim, "[*B, S, kv_dim]")
        check_same_batch(x=x, context=context)
        return self.attend(x, context, mask)
