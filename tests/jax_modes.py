"""JAX's switches under which everything must work that its inputs and promised results allow."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import AxisType

#: The axes of the mesh of "explicit_mesh"; of one device each, so that the mode works in every process.
MESH_AXES = ("data", "model")


def explicit_mesh() -> jax.sharding.Mesh:
    """A mesh whose axes are part of the types of arrays."""
    return jax.make_mesh((1, 1), MESH_AXES, axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:1])


#: name → what makes a fresh context manager that switches the mode on, for `with MODES[name]():`.
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "strict_dtypes": lambda: jax.numpy_dtype_promotion("strict"),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "checking_leaks": lambda: jax.checking_leaks(),
    "x64": lambda: jax.enable_x64(True),
    "explicit_mesh": lambda: jax.set_mesh(explicit_mesh()),
}
