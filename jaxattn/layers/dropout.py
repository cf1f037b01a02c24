"""Dropout whose randomness and keep masks are call arguments."""

import jax
from flax import nnx

from .._checks import check_rate
from .._typing import ArrayLike
from ..core.dropout import dropout
from ..core.mask_arrays import as_array


def dropout_key(rngs: nnx.Rngs | None) -> jax.Array:
    """The next key from the stream `dropout` of `rngs`.

    Raises:
        ValueError: no randomness given.
    """
    if rngs is None:
        raise ValueError("Dropout with `deterministic=False` needs `rngs=nnx.Rngs(dropout=seed)`, got rngs=None.")
    return rngs.dropout()


class Dropout(nnx.Module):
    """outputs = inputs · keep / (1 − rate) in training, inputs otherwise. Holds no randomness: each call gets it."""

    def __init__(self, rate: float = 0.5):
        check_rate("rate", rate)
        self.rate = rate

    def __call__(
        self,
        inputs: ArrayLike,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        keep_mask: ArrayLike | None = None,
    ) -> jax.Array:
        """inputs [*] → [*].

        Args:
            inputs: any shape.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what is kept.
            keep_mask: True = kept, broadcastable to inputs, instead of drawing.

        Raises:
            ValueError: dropout without randomness or mask.
        """
        inputs = as_array(inputs)
        if deterministic or self.rate == 0:
            return inputs
        if keep_mask is not None:
            return dropout(inputs, self.rate, keep_mask=as_array(keep_mask))
        return dropout(inputs, self.rate, rng=dropout_key(rngs))
