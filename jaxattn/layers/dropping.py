"""How one call applies dropout, handed down to every place that has some."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
from flax import nnx

from ..core.dropout import masks_below
from ..core.mask_arrays import as_array


@dataclass(frozen=True)
class Dropping:
    """The dropout arguments of a call: what a module got and what its parts get.

    Attributes:
        deterministic: False applies dropout.
        rngs: its stream `dropout` draws what no mask is given for.
        masks: keep masks (True = kept) by the path of their dropout below the module that was called.
    """

    deterministic: bool = True
    rngs: nnx.Rngs | None = None
    masks: Mapping[str, Any] | None = None

    def check(self, *parts: str) -> None:
        """Every mask is for one of the module's parts, or for something inside one.

        Raises:
            ValueError: it isn't, and would be ignored.
        """
        unknown = [path for path in self.masks or () if not path.startswith(tuple(f"{part}." for part in parts))]
        unknown = [path for path in unknown if path not in parts]
        if unknown:
            raise ValueError(
                f"`dropout_masks` must be for {', '.join(parts)} or for parts of them, got {', '.join(unknown)}."
            )

    def mask(self, name: str) -> jax.Array | None:
        """The keep mask of a part, if there is one."""
        mask = None if self.masks is None else self.masks.get(name)
        return None if mask is None else as_array(mask)

    def options(self, name: str, module: Any) -> dict[str, Any]:
        """Those of a call's dropout arguments that a part takes, its keep masks among them."""
        if not isinstance(module, nnx.Module):
            return {}
        given = {
            "deterministic": self.deterministic,
            "rngs": self.rngs,
            "dropout_masks": masks_below(self.masks, name),
            "dropout_mask": self.mask(name),
            "keep_mask": self.mask(name),
        }
        taken = _argument_names(type(module).__call__)
        return {option: value for option, value in given.items() if option in taken}

    def apply(self, name: str, module: Any, inputs: Any) -> jax.Array:
        """module(inputs), for a module or function of one array."""
        return module(inputs, **self.options(name, module))


@lru_cache(maxsize=256)
def _argument_names(function: Callable[..., Any]) -> frozenset[str]:
    """Read once a function: it would cost each part of each eager call some 10 µs."""
    return frozenset(inspect.signature(function).parameters)
