"""torch.nn.Embedding."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._checks import check_integers, check_sizes, check_whole
from .._typing import ArrayLike, DType, Precision
from ..core.mask_arrays import as_array


class Embedding(nnx.Embed):
    """The rows of a table, and `attend`, the linear layer whose weight is that table.

    Under jit an id above the range reads NaN, and a negative one counts from the end.

    Args:
        num_embeddings: number of rows.
        features: D, width of a row.
        padding_idx: a row that gets no gradient from being looked up, negative from the end; None is no row.
        dtype: of the result; None is that of the table.
        param_dtype: of the table.
        precision: of the product of `attend`.
        rngs: draws the table from N(0, 1), the padding row is 0.
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        padding_idx: int | None = None,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(num_embeddings=num_embeddings, features=features, least=0)
        if padding_idx is not None:
            check_whole("padding_idx", padding_idx, instead=" or None")
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"`padding_idx` must be one of the {num_embeddings} rows, or count from the end, got {padding_idx}."
                )
            padding_idx %= num_embeddings

        def init(key, shape, dtype):
            table = nnx.initializers.normal(1.0)(key, shape, dtype)
            return table if padding_idx is None else table.at[padding_idx].set(0)

        super().__init__(num_embeddings, features, dtype=dtype, param_dtype=param_dtype, embedding_init=init, rngs=rngs)
        self.padding_idx, self.precision = padding_idx, precision

    def __call__(self, inputs: ArrayLike, out_sharding=None) -> jax.Array:
        """inputs [*], integers → [*, D]."""
        inputs = as_array(inputs)
        check_integers("inputs", inputs)
        (table,) = self.promote_dtype((self.embedding[...],), dtype=self.dtype, inexact=False)
        out_sharding = _sharding_of_rows(inputs, table) if out_sharding is None else out_sharding
        rows = table.at[inputs].get(mode="fill", fill_value=jnp.nan, out_sharding=out_sharding)
        if self.padding_idx is None:
            return rows
        return jnp.where((inputs == self.padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)

    def attend(self, query: jax.Array, out_sharding=None) -> jax.Array:
        """query [*, D] → query · embeddingᵀ [*, num_embeddings]: a linear layer that is tied to this table."""
        query, table = self.promote_dtype((query, self.embedding[...]), dtype=self.dtype)
        return jnp.dot(query, table.T, precision=self.precision, out_sharding=out_sharding)


def _sharding_of_rows(inputs: jax.Array, table: jax.Array) -> NamedSharding | None:
    """Of rows on a mesh of explicit axes, where JAX asks: the axes of the inputs, then that of the table's columns."""
    shardings = [jax.typeof(array).sharding for array in (inputs, table)]
    mesh = next((sharding.mesh for sharding in shardings if AxisType.Explicit in sharding.mesh.axis_types), None)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec(*shardings[0].spec, *shardings[1].spec[1:]))
