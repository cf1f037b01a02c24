"""Weights that are not trained, and what of a module a state dict holds."""

from copy import deepcopy
from typing import Any

from flax import nnx


class FrozenParam(nnx.Variable):
    """A weight that PyTorch froze (`requires_grad=False`): no nnx.Param, so `wrt=nnx.Param` leaves it alone.

    It is loaded, saved and compared as parameters are.
    """

    def __deepcopy__(self, memo: Any) -> nnx.Variable:
        return self.replace(deepcopy(self.get_raw_value(), memo))  # nnx.Variable's own is that of the array it holds


def is_parameter(path: Any, value: Any) -> bool:
    """A filter of nnx.state and nnx.split: trained and frozen weights."""
    del path
    return isinstance(value, (nnx.Param, FrozenParam))


def is_held(path: Any, value: Any) -> bool:
    """A filter of nnx.state and nnx.split: what a state dict holds, parameters and statistics that calls gathered."""
    return is_parameter(path, value) or isinstance(value, nnx.BatchStat)
