"""Finding the state dict inside what a PyTorch file holds: the top level, a dotted `key`, or the only one there is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._checks import ConversionError, listed
from .._text import argument
from .stored import StoredTensor, kind_of


def pick_state_dict(loaded: object, key: str | None, path: Path) -> tuple[str | None, dict[str, Any]]:
    """The dotted key of the state dict (None: the top level) and its tensors by name.

    Raises:
        ConversionError: no state dict, several, or one with entries that are not tensors; each named.
    """
    if not isinstance(loaded, Mapping):
        kind = "one bare tensor" if _is_tensor(loaded) else f"a {kind_of(loaded)}"
        raise ConversionError(f"`{path}` holds {kind}, not a state dict: save a dict that names every tensor.")
    key, chosen = _only_candidate(loaded, path) if key is None else (key, _at(loaded, key, path) if key else loaded)
    where = f"`{path}`" + (f" under {argument('key', key)}" if key else "")
    if not chosen:
        raise ConversionError(f"{where} holds no tensors: the state dict is empty.")
    only_optimizer = any(isinstance(value, Mapping) and _is_optimizer(value) for value in chosen.values())
    if _is_optimizer(chosen) or (only_optimizer and not any(map(_is_tensor, chosen.values()))):
        raise ConversionError(f"{where} is the state of an optimizer, not weights: give the model's checkpoint.")
    problems = [
        f"{name!r} is a {kind_of(name)} key, not a string."
        if not isinstance(name, str)
        else f"`{name}` is a {kind_of(value)}, not a tensor."
        for name, value in chosen.items()
        if not isinstance(name, str) or not _is_tensor(value)
    ]
    if problems:
        hint = _hint(chosen)
        raise ConversionError(f"{where} holds entries that are not named tensors{hint}:", problems)
    return key or None, dict(chosen)


def _only_candidate(loaded: Mapping, path: Path) -> tuple[str | None, Mapping]:
    """The one dict that holds tensors and its key, when the top level holds none; else the top level."""
    if _is_optimizer(loaded) or any(_is_tensor(value) for value in loaded.values()):
        return None, loaded
    found = list(_tensor_dicts(loaded))
    if len(found) > 1:
        raise ConversionError(
            f"`{path}` holds several state dicts, choose one with {argument('key')}:",
            [argument("key", name) for name, _ in found],
        )
    return found[0] if found else (None, loaded)


def _tensor_dicts(value: Mapping, seen: set[int] | None = None) -> Iterator[tuple[str, Mapping]]:
    """Dotted paths of the dicts below `value` that hold tensors themselves; optimizer states are passed over."""
    seen = set() if seen is None else seen  # a pickle can hold one dict in many places, or inside itself
    for name, child in value.items():
        if not isinstance(name, str) or not isinstance(child, Mapping) or _is_optimizer(child) or id(child) in seen:
            continue
        seen.add(id(child))
        if any(_is_tensor(leaf) for leaf in child.values()):
            yield name, child
        else:
            for below, found in _tensor_dicts(child, seen):
                yield f"{name}.{below}", found


def _at(loaded: Mapping, key: str, path: Path) -> Mapping:
    """The one dict at a dotted key."""
    found = list({id(value): value for value in _values_at(loaded, key)}.values())
    if len(found) > 1:
        raise ConversionError(
            f"{argument('key', key)} names {len(found)} entries of `{path}`: a name in it has dots of its own."
        )
    if found and isinstance(found[0], Mapping):
        return found[0]
    known = [f"`{name}`" for name, _ in _tensor_dicts(loaded)]
    state = "is not a dict" if found else "does not exist"
    raise ConversionError(
        f"{argument('key', key)} {state} in `{path}`; tensors are under: {listed(known) or 'nothing'}."
    )


def _values_at(value: object, key: str) -> Iterator[object]:
    """The entries at a dotted key; a name may contain dots itself."""
    if not isinstance(value, Mapping):
        return
    if key in value:
        yield value[key]
    for position, letter in enumerate(key):
        if letter == "." and key[:position] in value:
            yield from _values_at(value[key[:position]], key[position + 1 :])


def _is_tensor(value: object) -> bool:
    return type(value) is StoredTensor


def _is_optimizer(value: Mapping) -> bool:
    return "state" in value and "param_groups" in value


def _hint(chosen: Mapping) -> str:
    """What to do about entries that are not tensors, as a clause."""
    below = [name for name, _ in _tensor_dicts(chosen)]
    return f" (a state dict lies under {argument('key', below[0])})" if below else ""
