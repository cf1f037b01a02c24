"""The arguments of one call, given in any framework's arrays, for both sides and in any dtype."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._tensors import as_numpy, causal_bias, is_tensor
from ..convert.torch_copy import structural_copy


def is_floating(array: Any) -> bool:
    """Whether the dtype of a NumPy or JAX array is floating, bfloat16 included."""
    return jnp.issubdtype(array.dtype, jnp.floating)


def nan_count(array: np.ndarray) -> int:
    """How many elements are NaN; 0 for integers and booleans."""
    return int(np.isnan(array.astype(np.float64)).sum()) if is_floating(array) else 0


@dataclass(frozen=True)
class Arguments:
    """Each distinct array of a call once, with its name; whatever is no array is passed to both sides as a copy.

    An array given twice (self-attention through `query, key, value`) is one array on both sides and has one gradient.
    """

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    leaves: tuple[Any, ...]
    places: tuple[int | None, ...]
    treedef: Any

    @classmethod
    def of(cls, forward: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> "Arguments":
        """Read the call `forward(*inputs, **kwargs)`: NumPy, JAX or torch arrays, also inside tuples, lists, dicts."""
        paths, treedef = jax.tree_util.tree_flatten_with_path((tuple(inputs), dict(kwargs)))
        positional = _positional_names(forward)
        distinct: dict[int, tuple[int, Any]] = {}
        names: list[list[str]] = []
        places = []
        for path, leaf in paths:
            # A causal bias is a mask by what it says, not by numbers: both sides get it as it is.
            if not (isinstance(leaf, (np.ndarray, jax.Array)) or is_tensor(leaf)) or causal_bias(leaf):
                places.append(None)
                continue
            index, _ = distinct.setdefault(id(leaf), (len(distinct), leaf))
            if index == len(names):
                names.append([])
            names[index].append(_name(path, positional))
            places.append(index)
        return cls(
            tuple(" = ".join(group) for group in names),
            tuple(np.array(as_numpy(leaf)) for _, leaf in distinct.values()),
            tuple(leaf for _, leaf in paths),
            tuple(places),
            treedef,
        )

    def at(self, dtype: np.dtype) -> "Arguments":
        """The floating arrays cast to `dtype`; integers and booleans as they are."""
        with np.errstate(over="ignore"):
            return replace(self, arrays=tuple(a.astype(dtype) if is_floating(a) else a for a in self.arrays))

    def holding(self, arrays: Sequence[np.ndarray]) -> "Arguments":
        """The same call with other arrays, one for each of `names`."""
        return replace(self, arrays=tuple(arrays))

    def call_with(
        self, arrays: Sequence[Any], copied: Callable[[Any], Any] = structural_copy
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(positional, keyword) arguments with `arrays`, one for each of `names`, in the arrays' places.

        What is no array is a copy by `copied`: the call may change it (a cache).
        """
        leaves = [
            copied(leaf) if place is None else arrays[place]
            for leaf, place in zip(self.leaves, self.places, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    @property
    def floating(self) -> tuple[int, ...]:
        """Which of `arrays` are floating: those that have a gradient."""
        return tuple(i for i, array in enumerate(self.arrays) if is_floating(array))


def check_numbers(arguments: Arguments) -> None:
    """Arrays hold real numbers or booleans.

    Raises:
        TypeError: text, objects, complex numbers.
    """
    for name, array in zip(arguments.names, arguments.arrays, strict=True):
        if not (is_floating(array) or array.dtype.kind in "iub"):
            raise TypeError(f"Arrays must hold real numbers or booleans, got {array.dtype} for `{name}`.")


def _positional_names(forward: Any) -> list[str]:
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _name(path: tuple[Any, ...], positional: list[str]) -> str:
    kind, place, *rest = path
    if kind.idx == 1:
        name = place.key
    else:
        name = positional[place.idx] if place.idx < len(positional) else f"inputs[{place.idx}]"
    return name + jax.tree_util.keystr(tuple(rest))
