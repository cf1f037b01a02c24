"""In which dtype a step is computed."""

from typing import Any

import jax.numpy as jnp


def at_least_float32(*arrays_or_dtypes: Any) -> Any:
    """What the arguments promote to, and float32 for anything narrower.

    Not by promoting with float32: JAX refuses that where promotion is "strict", for arrays of one dtype too.
    """
    dtype = jnp.result_type(*arrays_or_dtypes)
    wide = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits >= 32
    return dtype if wide else jnp.dtype(jnp.float32)
