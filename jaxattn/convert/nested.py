"""Finding the state dict inside what torch.load returned: the top level, a dotted `key`, or the only one there is."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .._checks import ConversionError

MAX_DICTS = 200
"""How many nested dicts are looked through; also the depth of the search."""

IsTensor = Callable[[object], bool]


def pick_state_dict(
    loaded: object, key: str | None, is_tensor: IsTensor, path: Path
) -> tuple[str | None, dict[str, Any]]:
    """The dotted key of the state dict (None: the top level) and its tensors by name.

    Raises:
        ConversionError: no state dict, several, or one with entries that are not tensors; each named.
    """
    if not isinstance(loaded, Mapping):
        kind = "one bare tensor" if is_tensor(loaded) else f"a {type(loaded).__name__}"
        raise ConversionError(f"`{path}` holds {kind}, not a state dict: save a dict that names every tensor.")
    if key is None:
        key = _only_candidate(loaded, is_tensor, path)
    chosen = _descend(loaded, key) if key else loaded
    if not isinstance(chosen, Mapping):
        found = [f"`{name}`" for name, _ in _tensor_dicts(loaded, is_tensor)]
        state = "is not a dict" if chosen is not None else "does not exist"
        raise ConversionError(f"key={key!r} {state} in `{path}`; tensors are under: {', '.join(found) or 'nothing'}.")
    where = f"`{path}`" + (f" under key={key!r}" if key else "")
    if not chosen:
        raise ConversionError(f"{where} holds no tensors: the state dict is empty.")
    only_optimizer = any(isinstance(value, Mapping) and _is_optimizer(value) for value in chosen.values())
    if _is_optimizer(chosen) or (only_optimizer and not any(map(is_tensor, chosen.values()))):
        raise ConversionError(f"{where} is the state of an optimizer, not weights: give the model's checkpoint.")
    problems = [
        f"{name!r} is a {type(name).__name__} key, not a string."
        if not isinstance(name, str)
        else f"`{name}` is a {type(value).__name__}, not a tensor."
        for name, value in chosen.items()
        if not isinstance(name, str) or not is_tensor(value)
    ]
    if problems:
        hint = _hint(chosen, is_tensor)
        raise ConversionError(f"{where} holds entries that are not named tensors{hint}:", problems)
    return key or None, dict(chosen)


def _only_candidate(loaded: Mapping, is_tensor: IsTensor, path: Path) -> str | None:
    """The one dict that holds tensors, when the top level holds none; None when the top level is the state dict."""
    if _is_optimizer(loaded) or any(is_tensor(value) for value in loaded.values()):
        return None
    found = [name for name, _ in _tensor_dicts(loaded, is_tensor)]
    if len(found) > 1:
        raise ConversionError(
            f"`{path}` holds several state dicts, choose one with key=:", [f"key={name!r}" for name in found]
        )
    return found[0] if found else None


def _tensor_dicts(value: Mapping, is_tensor: IsTensor, seen: set[int] | None = None) -> Iterator[tuple[str, Mapping]]:
    """Dotted paths of the dicts below `value` that hold tensors themselves; optimizer states are passed over."""
    seen = set() if seen is None else seen  # a pickle can hold one dict in many places, or inside itself
    for name, child in value.items():
        if not isinstance(name, str) or not isinstance(child, Mapping) or _is_optimizer(child) or id(child) in seen:
            continue
        seen.add(id(child))
        if any(is_tensor(leaf) for leaf in child.values()):
            yield name, child
        elif len(seen) < MAX_DICTS:
            for below, found in _tensor_dicts(child, is_tensor, seen):
                yield f"{name}.{below}", found


def _descend(value: object, key: str) -> object:
    """The entry at a dotted path; a name that itself contains dots is found too."""
    if not isinstance(value, Mapping):
        return None
    if key in value:
        return value[key]
    for position, letter in enumerate(key):
        if letter == "." and key[:position] in value:
            found = _descend(value[key[:position]], key[position + 1 :])
            if found is not None:
                return found
    return None


def _is_optimizer(value: Mapping) -> bool:
    return "state" in value and "param_groups" in value


def _hint(chosen: Mapping, is_tensor: IsTensor) -> str:
    """What to do about entries that are not tensors, as a clause."""
    below = [name for name, _ in _tensor_dicts(chosen, is_tensor)]
    return f" (a state dict lies under key={below[0]!r})" if below else ""
