"""What a module returns, as a flat list of named arrays, and which of one side's belongs to which of the other's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._checks import shape_text


@dataclass(frozen=True)
class Flat:
    """The arrays of a result in order; `named` if the result names its parts (NamedTuple, mapping, ModelOutput)."""

    named: bool
    paths: tuple[str, ...]
    arrays: tuple[Any, ...]
    ignored: tuple[str, ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(array.shape) for array in self.arrays]

    def __str__(self) -> str:
        parts = [f"{path or 'output'} {shape_text(a.shape)}" for path, a in zip(self.paths, self.arrays, strict=True)]
        return ", ".join(parts) or "nothing"


def flatten_result(result: Any) -> Flat:
    """An array, a tuple, a NamedTuple, a mapping or a dataclass of arrays, nested; None is no part of it."""
    found = list(_leaves(result, ""))
    arrays = [(path, leaf) for path, leaf in found if _is_array(leaf)]
    return Flat(
        isinstance(result, Mapping) or hasattr(result, "_fields") or hasattr(result, "__dataclass_fields__"),
        tuple(path for path, _ in arrays),
        tuple(leaf for _, leaf in arrays),
        tuple(f"{path or 'output'} ({type(leaf).__name__})" for path, leaf in found if not _is_array(leaf)),
    )


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _leaves(result: Any, path: str) -> Iterator[tuple[str, Any]]:
    if result is None:
        return
    if isinstance(result, Mapping):
        parts = [(f"{path}.{name}", value) for name, value in result.items()]
    elif hasattr(result, "_fields"):
        parts = [(f"{path}.{name}", getattr(result, name)) for name in result._fields]
    elif isinstance(result, (tuple, list)):
        parts = [(f"{path}[{i}]", value) for i, value in enumerate(result)]
    elif hasattr(result, "__dataclass_fields__"):
        parts = [(f"{path}.{name}", getattr(result, name)) for name in result.__dataclass_fields__]
    else:
        yield path, result
        return
    for name, value in parts:
        yield from _leaves(value, name.lstrip("."))


def pair(torch_flat: Flat, flax_flat: Flat) -> tuple[list[str], list[int]]:
    """(name, index into Flax's arrays) for each of torch's arrays: by name if both sides name them, else by order.

    Raises:
        ValueError: another number or other names of arrays, or shapes that differ.
    """
    by_name = torch_flat.named and flax_flat.named
    fits = (
        sorted(torch_flat.paths) == sorted(flax_flat.paths)
        if by_name
        else len(torch_flat.arrays) == len(flax_flat.arrays)
    )
    if not fits:
        raise ValueError(
            "Both modules must return the same arrays, got from torch "
            f"{torch_flat}, from Flax {flax_flat}; wrap one of them so that the same arrays come out."
        )
    order = [flax_flat.paths.index(path) for path in torch_flat.paths] if by_name else range(len(flax_flat.arrays))
    names = [_name(torch_flat, flax_flat, mine, yours) for mine, yours in enumerate(order)]
    differing = [
        f"`{name}` torch {shape_text(torch_flat.shapes[mine])}, Flax {shape_text(flax_flat.shapes[yours])}"
        for mine, (name, yours) in enumerate(zip(names, order, strict=True))
        if torch_flat.shapes[mine] != flax_flat.shapes[yours]
    ]
    if differing:
        raise ValueError(f"Both modules must return arrays of the same shapes, got {'; '.join(differing)}.")
    return names, list(order)


def _name(torch_flat: Flat, flax_flat: Flat, mine: int, yours: int) -> str:
    if flax_flat.named:
        return flax_flat.paths[yours]
    path = torch_flat.paths[mine]
    return path if torch_flat.named else f"output{path}"
