"""Self-attention with one head and no output projection."""

import jax.numpy as jnp
from flax import nnx

from .._checks import check_broadcasts, check_features, check_sizes
from .._typing import ArrayLike, DType, Precision
from ..convert.registry import register
from ..core.dot_product import AttentionOutput, dot_product_attention
from ..core.heads import merge_heads, split_heads
from ..core.mask_arrays import as_array, from_nonzero
from ..core.masks import Mask
from ..layers import linear


@register("torchref.variants.scaled_dot_product.ScaledDotProductSelfAttention")
class ScaledDotProductSelfAttention(nnx.Module):
    """output = softmax(q kᵀ / √D, where mask) v with q, k, v = W_q(x), W_k(x), W_v(x).

    Args:
        embed_dim: D, width of inputs and outputs, in features.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of the parameters.
        precision: of the matrix products.
        rngs: randomness of the initial parameters.

    Reference: Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(embed_dim=embed_dim)
        options = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        self.embed_dim = embed_dim
        self.precision = precision
        self.W_q = linear(embed_dim, embed_dim, **options)
        self.W_k = linear(embed_dim, embed_dim, **options)
        self.W_v = linear(embed_dim, embed_dim, **options)

    def __call__(self, x: ArrayLike, mask: ArrayLike | Mask | None = None) -> AttentionOutput:
        """x [*B, L, D], mask broadcastable to [*B, L, L] → output [*B, L, D], weights [*B, L, L].

        Args:
            x: the sequence.
            mask: any dtype, non-zero = may attend, 0 = blocked; a padding mask over keys (B, L) is `mask[:, None, :]`.
                A fully blocked row attends uniformly, as filling with −1e9 makes it.
                A mask of jaxattn.masks is taken, too.

        Raises:
            ValueError: shapes that do not fit; a float mask holding a negative value (outside jit).
        """
        x = as_array(x)
        check_features("x", x, self.embed_dim, "[*B, L, embed_dim]")
        if mask is not None and not isinstance(mask, Mask):
            mask = from_nonzero(mask)
            check_broadcasts("mask", mask, (*x.shape[:-1], x.shape[-2]), axes="(..., L, L)")
            mask = jnp.expand_dims(mask, -3) if mask.ndim > 2 else mask  # *B 1 L L
        q, k, v = (split_heads(project(x), 1) for project in (self.W_q, self.W_k, self.W_v))
        output, weights = dot_product_attention(
            q, k, v, mask=mask, empty_row="uniform", return_weights=True, precision=self.precision
        )
        return AttentionOutput(merge_heads(output), jnp.squeeze(weights, -3))
