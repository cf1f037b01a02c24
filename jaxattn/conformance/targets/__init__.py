"""The libraries that are checked, each behind a thin adapter of its own file."""

from collections.abc import Callable

from ..target import Target
from .equinox_nn import EquinoxNn
from .flax_nnx import FlaxNnx
from .jax_nn import JaxNn
from .keras_ops import KerasOps
from .own import Jaxattn

TARGETS: dict[str, Callable[[], Target]] = {
    "jaxattn": Jaxattn,
    "jax.nn": JaxNn,
    "flax.nnx": FlaxNnx,
    "equinox": EquinoxNn,
    "keras": KerasOps,
}


def make_target(name: str) -> Target:
    """The adapter of that name.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
        ImportError: the library is not installed; names the extra that installs it.
    """
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; known are {', '.join(TARGETS)}.")
    return TARGETS[name]()
