"""Layers without numbers: torch.nn.Flatten and einops.layers.torch.Rearrange."""

import jax
from flax import nnx

from .._checks import check_sizes, check_whole, shape_text
from .._typing import ArrayLike
from ..core.mask_arrays import as_array


class Flatten(nnx.Module):
    """Axes `start_dim` to `end_dim` as one.

    Args:
        start_dim: the first of them.
        end_dim: the last of them.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        check_whole("start_dim", start_dim)
        check_whole("end_dim", end_dim)
        self.start_dim, self.end_dim = start_dim, end_dim

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, …, *] → [*, product, *]; a scalar becomes one element.

        Raises:
            ValueError: axes that the inputs don't have, or the last before the first.
        """
        inputs = as_array(inputs)
        rank = max(inputs.ndim, 1)
        first, last = (dim + rank if dim < 0 else dim for dim in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < rank:
            raise ValueError(
                f"`start_dim` to `end_dim` must be axes of the inputs in this order, got {self.start_dim} to "
                f"{self.end_dim} for shape {shape_text(inputs.shape)}."
            )
        size = 1
        for axis in inputs.shape[first : last + 1]:
            size *= axis
        return inputs.reshape((*inputs.shape[:first], size, *inputs.shape[last + 1 :]))


class Rearrange(nnx.Module):
    """einops.rearrange(inputs, pattern, **axes_lengths), read by einops itself.

    Args:
        pattern: "b c (h p) (w q) -> b (h w) (p q c)".
        axes_lengths: sizes of the axes that the inputs' shape doesn't tell.
    """

    def __init__(self, pattern: str, **axes_lengths: int):
        check_sizes(**axes_lengths)
        self.pattern = pattern
        self.axes = tuple(sorted(axes_lengths.items()))

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs and outputs as the pattern says.

        Raises:
            ImportError: einops is not installed.
            ValueError: inputs that the pattern doesn't fit.
        """
        try:
            from einops import EinopsError, rearrange
        except ImportError as error:
            raise ImportError("`Rearrange` needs einops to read its pattern: pip install einops.") from error
        inputs = as_array(inputs)
        try:
            return rearrange(inputs, self.pattern, **dict(self.axes))
        except EinopsError as error:
            raise ValueError(
                f"`inputs` of shape {shape_text(inputs.shape)} must fit the pattern {self.pattern!r} with "
                f"{dict(self.axes)}: {str(error).strip().splitlines()[-1].strip()}"
            ) from error
