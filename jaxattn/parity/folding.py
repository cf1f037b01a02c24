"""Lines that say the same of equal layers, as one: `encoder.layer.{0…11}.output`."""

import re
from collections.abc import Sequence
from dataclasses import replace

from .trace_layer import Layer

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def folded_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Calls that agree in full, one for all that differ in one number of their paths, with the worst of their numbers.

    Where something fails, is left out or is ill-conditioned, the call has a line of its own.
    """
    groups: dict[object, list[Layer]] = {}
    for place, layer in enumerate(layers):
        plain = layer.verdict == "ok"
        like = (_pattern(layer.torch_path), layer.call, layer.torch_kind, layer.flax_kind, layer.shape)
        groups.setdefault(like if plain else place, []).append(layer)
    return [_worst(group) for group in groups.values()]


def folded_paths(paths: Sequence[str]) -> list[str]:
    """The same for paths alone."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(_pattern(path), []).append(path)
    return [_name(group) for group in groups.values()]


def _pattern(path: str) -> str:
    """The path with its first number left out: that of a layer in a stack."""
    return _NUMBER.sub("{}", path, count=1)


def _name(paths: Sequence[str]) -> str:
    """Of several paths with one pattern: the numbers they have, runs of them shortened."""
    if len(paths) == 1:
        return paths[0]
    numbers = sorted(int(_NUMBER.search(path).group()) for path in paths)  # pyright: ignore[reportOptionalMemberAccess] -- only paths with a number share a pattern
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}…{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return _NUMBER.sub("{" + ", ".join(texts) + "}", paths[0], count=1)


def _worst(group: Sequence[Layer]) -> Layer:
    if len(group) == 1:
        return group[0]
    # A pair of numbers belongs together: what is nearest to its limit.
    local = max(group, key=lambda layer: _share(layer.local_error, layer.local_allowed))
    whole = max(group, key=lambda layer: _share(layer.error, layer.allowed))
    return replace(
        group[0],
        torch_path=_name([layer.torch_path for layer in group]),
        local_error=local.local_error,
        local_allowed=local.local_allowed,
        error=whole.error,
        allowed=whole.allowed,
    )


def _share(error: float | None, allowed: float | None) -> float:
    return -1.0 if error is None or not allowed else error / allowed
