"""Combinations of options: few of them, in which every option meets every other one."""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from typing import Any

import numpy as np

#: Option → its values; the first one is the default.
Options = Mapping[str, tuple[Any, ...]]
Combination = dict[str, Any]


def drawn_combination(options: Options, rng: np.random.Generator) -> Combination:
    return {name: values[rng.integers(len(values))] for name, values in options.items()}


def covering(options: Options, allowed: Callable[[Combination], bool], count: int, seed: int) -> list[Combination]:
    """The defaults, then each time the one of many random combinations in which most values meet for the first time."""
    rng = np.random.default_rng(seed)
    chosen = [{name: values[0] for name, values in options.items()}]
    switched, met = on_or_off(chosen, options), _meetings(chosen)
    while len(chosen) < count:
        drawn = [candidate for _ in range(100) if allowed(candidate := drawn_combination(options, rng))]

        def news(candidate: Combination, switched=switched, met=met) -> int:
            return 10 * len(on_or_off([candidate], options) - switched) + len(_meetings([candidate]) - met)

        chosen.append(max(drawn, key=news))
        switched |= on_or_off(chosen[-1:], options)
        met |= _meetings(chosen[-1:])
    return chosen


def switched(options: Options, count: int, seed: int) -> list[Combination]:
    """As few combinations as bring every two options together, on and off; on takes the other values in turn.

    The first combination is the defaults, and each option is on in another set of ⌈count / 2⌉ of the others: two such
    sets meet, and neither holds the other.

    Reference: Kleitman and Spencer 1973, https://doi.org/10.1016/0012-365X(73)90098-8.
    """
    rng = np.random.default_rng(seed)
    sets = list(combinations(range(1, count), (count + 1) // 2))
    chosen = [{name: values[0] for name, values in options.items()} for _ in range(count)]
    for (name, values), place in zip(options.items(), rng.permutation(len(sets)), strict=False):
        for turn, row in enumerate(sets[place]):
            chosen[row][name] = values[1 + turn % (len(values) - 1)]
    return chosen


def on_or_off(chosen: Iterable[Combination], options: Options) -> set[Any]:
    """Which two options meet, each as its default or as another value."""
    switches = [{name: combination[name] != values[0] for name, values in options.items()} for combination in chosen]
    return _meetings(switches)


def all_on_or_off(options: Options) -> set[Any]:
    names = combinations(options, 2)
    return {((a, x), (b, y)) for a, b in names for x, y in product((False, True), repeat=2)}


def _meetings(chosen: Iterable[Combination]) -> set[Any]:
    return {pair for combination in chosen for pair in combinations(combination.items(), 2)}


def words(combination: Combination, options: Options) -> str:
    """A name: what isn't the default."""
    parts = []
    for name, values in options.items():
        value = combination[name]
        if value == values[0]:
            continue
        text = getattr(value, "__name__", value)
        parts.append(name if value is True else f"no {name}" if value is False else f"{name} {text}")
    return ", ".join(parts) or "defaults"
