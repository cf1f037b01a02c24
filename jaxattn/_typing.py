"""The axis alphabet of every annotation, einsum and comment, and the aliases that use it.

B batch · T query length · S key/value length · D model features · N query heads · K kv heads · G = N // K ·
H head width · V value width · W window (tokens) · R latent or feature rank. `*B` is any number of batch axes.
"""

from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

ArrayLike = jax.Array | np.ndarray | float | int
DType = Any
#: Of an axis: an integer, or a symbolic one of `jax.export`.
Size = Any
Precision = Any
EmptyRow = Literal["zero", "uniform", "nan"]

Queries = Float[Array, "*B T N H"]
Keys = Float[Array, "*B S K H"]
Values = Float[Array, "*B S K V"]
Logits = Float[Array, "*B N T S"]
Mask = Bool[Array, "..."]
