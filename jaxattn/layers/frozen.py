"""Parameters that are not trained."""

from typing import Any

from flax import nnx


class FrozenParam(nnx.Variable):
    """A weight that PyTorch froze (`requires_grad=False`): no nnx.Param, so `wrt=nnx.Param` leaves it alone.

    It is loaded, saved and compared as parameters are.
    """


def is_parameter(path: Any, value: Any) -> bool:
    """A filter of nnx.state and nnx.split: trained and frozen weights."""
    del path
    return isinstance(value, (nnx.Param, FrozenParam))
