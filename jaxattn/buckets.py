"""Sequences padded to a few lengths, the padding masked, the results cut back: few compilations for many lengths."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import BoundArguments
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ._checks import shape_text
from .core.mask_arrays import is_traced


@dataclass(frozen=True)
class Layout:
    """Where the length T is in the arguments of a module, by their names.

    Attributes:
        sequences: have the length; the first decides. There may be no other required arguments.
        axis: of the length in them.
        mask: of the padding, [*B, T], where *B are the first sequence's axes before the length.
        attend: whether its non-zero means "may attend"; else True, or a floating −inf, means "blocked".
        pairs: masks over queries and keys, [..., T, T]; with `attend` the mask itself may be one, [*B, T, T].
    """

    sequences: tuple[str, ...]
    axis: int
    mask: str
    attend: bool
    pairs: tuple[str, ...] = ()


LAYOUTS = (
    Layout(("input_ids", "token_type_ids", "position_ids"), -1, "attention_mask", attend=True),
    Layout(("src",), -2, "src_key_padding_mask", attend=False, pairs=("src_mask", "mask")),
    Layout(("query", "key", "value"), -2, "key_padding_mask", attend=False, pairs=("attn_mask",)),
)


@partial(jax.tree_util.register_dataclass, data_fields=["result"], meta_fields=["length", "axes"])
@dataclass(frozen=True)
class Marked:
    """A padded result: its length, and for each of its arrays the axes that have this length."""

    result: Any
    length: int
    axes: tuple[tuple[int, ...], ...]


class Buckets:
    """What a module's arguments and results need so that it only sees some lengths.

    Raises:
        ValueError: lengths that are not increasing positive integers.
        NotImplementedError: a module whose arguments no layout describes, or that is not batch first.
    """

    def __init__(self, module: Any, lengths: Sequence[int]):
        self.lengths = tuple(lengths)
        whole = all(isinstance(length, int) and not isinstance(length, bool) for length in self.lengths)
        if not self.lengths or not whole or [0, *self.lengths] != sorted({0, *self.lengths}):
            raise ValueError(f"`pad_to` must be increasing positive integers, got {lengths!r}.")
        self._layout = _layout_of(module)

    def pad(self, bound: BoundArguments) -> tuple[BoundArguments, int]:
        """The arguments at the smallest length that fits, their padding masked; and the length they had."""
        layout, given = self._layout, {name: value for name, value in bound.arguments.items() if value is not None}
        first = _array(given[layout.sequences[0]])
        length = self._length(first)
        bucket = next(size for size in self.lengths if size >= length)
        padded = {}
        for name, value in given.items():
            axes = self._axes(name, value, first)
            if not axes:
                self._check_other(name, value)
                continue
            array = _array(value)
            self._check_axes(name, array, axes, length)
            if name == layout.mask and layout.attend and bucket > length:
                _check_attended(name, array)
            key = (id(value), axes, name == layout.mask)  # An array given twice stays one: its projections are one.
            if key not in padded:
                padded[key] = _pad(array, axes, bucket - length, self._fill(name, array))
            bound.arguments[name] = padded[key]
        if layout.mask not in given:
            batch = first.shape[: first.ndim + layout.axis]
            bound.arguments[layout.mask] = self._mask(batch, length, bucket)
        return bound, length

    def mark(
        self, result: Any, again: Callable[[list[Any]], Any], arrays: list[Any], indices: Mapping[str, int]
    ) -> Marked:
        """The result and where its length is: what has another size when the arguments have another length.

        Args:
            result: of the padded arguments.
            again: computes it from other arrays.
            arrays: the padded ones.
            indices: of the arguments in them, by name.

        Raises:
            NotImplementedError: a size that depends on the length but is another.
        """
        first = arrays[indices[self._layout.sequences[0]]]
        length = first.shape[self._layout.axis]
        probed = length - 1 or 2
        others = list(arrays)
        for name, index in indices.items():
            shape = list(arrays[index].shape)
            for axis in self._axes(name, arrays[index], first):
                shape[axis] = probed
            others[index] = jax.ShapeDtypeStruct(shape, arrays[index].dtype)
        found = []
        for leaf, other in zip(jax.tree.leaves(result), jax.tree.leaves(jax.eval_shape(again, others)), strict=True):
            pairs = list(enumerate(zip(leaf.shape, other.shape, strict=True)))
            found.append(tuple(axis for axis, (size, probe) in pairs if size != probe))
            if any((size, probe) != (length, probed) for _, (size, probe) in pairs if size != probe):
                raise NotImplementedError(
                    "With `pad_to` the axes of a result that depend on the length must be the length, got shape "
                    f"{shape_text(leaf.shape)} at length {length}, {shape_text(other.shape)} at length {probed}; "
                    "leave it out with `select`, or compile without `pad_to`."
                )
        return Marked(result, length, tuple(found))

    @staticmethod
    def cut(marked: Marked, length: int) -> Any:
        """The result at the length that the arguments had."""
        if marked.length == length:
            return marked.result
        leaves, treedef = jax.tree.flatten(marked.result)
        return treedef.unflatten(
            _cut(leaf, axes, length) if axes else leaf for leaf, axes in zip(leaves, marked.axes, strict=True)
        )

    @staticmethod
    def check_picked(selected: Any, result: Any) -> None:
        known = {id(leaf) for leaf in jax.tree.leaves(result)}
        if not all(id(leaf) in known for leaf in jax.tree.leaves(selected)):
            raise NotImplementedError(
                "With `pad_to`, `select` must pick from the result: computing on it would see the padding. "
                "Compute on what the compiled call returns."
            )

    def _length(self, first: Any) -> int:
        name, axis = self._layout.sequences[0], self._layout.axis
        if first.ndim < -axis:
            raise ValueError(f"`{name}` must have a length (axis {axis}), got shape {shape_text(first.shape)}.")
        if not 1 <= first.shape[axis] <= self.lengths[-1]:
            raise ValueError(
                f"The length of `{name}` (axis {axis}) must be in [1, {self.lengths[-1]}], got shape "
                f"{shape_text(first.shape)}; truncate it, or add a longer length to pad_to={self.lengths}."
            )
        return first.shape[axis]

    def _axes(self, name: str, value: Any, first: Any) -> tuple[int, ...]:
        """Of the length in an argument."""
        layout = self._layout
        if name in layout.sequences:
            return (layout.axis,)
        if name in layout.pairs or (name == layout.mask and layout.attend and np.ndim(value) > first.ndim):
            return (-2, -1)
        return (-1,) if name == layout.mask else ()

    def _fill(self, name: str, array: Any) -> Any:
        """The value of padding: blocked in the mask, 0 elsewhere, so that queries of the padding see real tokens."""
        if name != self._layout.mask or self._layout.attend:
            return 0
        return -np.inf if jnp.issubdtype(array.dtype, jnp.floating) else 1

    def _mask(self, batch: tuple[int, ...], length: int, bucket: int) -> np.ndarray:
        mask = np.full((*batch, bucket), not self._layout.attend)
        mask[..., :length] = self._layout.attend
        return mask

    def _check_axes(self, name: str, array: Any, axes: tuple[int, ...], length: int) -> None:
        if array.ndim < len(axes) or any(array.shape[axis] != length for axis in axes):
            raise ValueError(
                f"`{name}` must have the length of `{self._layout.sequences[0]}`, {length}, on axis "
                f"{' and '.join(map(str, axes))}, got shape {shape_text(array.shape)}."
            )

    @staticmethod
    def _check_other(name: str, value: Any) -> None:
        if name == "empty_row" and value == "uniform":
            raise ValueError("`empty_row='uniform'` would spread over the padding; compile without `pad_to`.")
        if name != "rngs" and any(np.ndim(leaf) for leaf in jax.tree.leaves(value)):
            raise TypeError(f"`pad_to` doesn't know where the length is in `{name}`; compile without `pad_to`.")


def _layout_of(module: Any) -> Layout:
    kind, parameters = type(module).__name__, inspect.signature(module.__call__).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    for layout in LAYOUTS:
        if layout.sequences[0] in required and required <= {*layout.sequences} and layout.mask in parameters:
            break
    else:
        known = ", ".join(f"({', '.join(layout.sequences)}; {layout.mask})" for layout in LAYOUTS)
        raise NotImplementedError(
            f"`pad_to` needs a module with the arguments (sequences; padding mask) {known} and no other required ones, "
            f"got a {kind}({', '.join(parameters)})."
        )
    if any(getattr(part, "batch_first", True) is False for _, part in nnx.iter_modules(module)):
        raise NotImplementedError(f"`pad_to` needs batch_first=True, got a {kind} with batch_first=False.")
    return layout


def _check_attended(name: str, mask: Any) -> None:
    """Where nothing may be attended to, attention is uniform, and would be so over the padding too."""
    if not is_traced(mask) and not np.asarray(mask).any(-1).all():
        raise ValueError(
            f"With `pad_to`, `{name}` must allow at least one token in each row, got a row of zeros: it would attend "
            "to the padding as well. Leave the sentence out, or allow one of its tokens."
        )


def _array(value: Any) -> Any:
    return value if hasattr(value, "shape") else np.asarray(value)


def _on_host(array: Any) -> bool:
    """Whether NumPy can look at it where it is: there, no small program is compiled for each length."""
    if not isinstance(array, jax.Array):
        return True
    return not is_traced(array) and len(array.devices()) == 1 and next(iter(array.devices())).platform == "cpu"


def _pad(array: Any, axes: tuple[int, ...], amount: int, value: Any) -> Any:
    if not amount:
        return array
    sizes = [size + amount * (axis - array.ndim in axes) for axis, size in enumerate(array.shape)]
    if not _on_host(array):
        return jnp.pad(
            array, [(0, new - old) for new, old in zip(sizes, array.shape, strict=True)], constant_values=value
        )
    padded = np.full(sizes, value, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def _cut(array: jax.Array, axes: tuple[int, ...], length: int) -> jax.Array:
    index = tuple(slice(length if axis in axes else None) for axis in range(array.ndim))
    if not _on_host(array):
        return array[index]
    short = np.asarray(array)[index]
    return jax.device_put(short, array.sharding) if array.committed else jnp.asarray(short)
