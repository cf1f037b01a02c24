"""Which known module a checkpoint's names and shapes belong to, and the sizes it was built with.

Every dimension of every weight is an affine function of the constructor's sizes. Building a module with one size after
the other doubled gives the coefficients, so a variant is recognised by its rules and nothing else.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from ..convert.flax_layout import Shape, source_shapes
from ..models import FAMILIES
from ..models.family import Family
from .variants import VARIANTS, Variant


@dataclass(frozen=True, eq=False)
class Known:
    """A module or family by its name on the command line.

    Attributes:
        name: `multi_head`, `bert`.
        option: "module" or "family".
        build: settings → the abstract module.
        bases: settings to start from, one for each set of names that the module can have; integers are sizes.
        layers: the settings that count layers, one for each stack; 1 in the bases.
    """

    name: str
    option: str
    build: Callable[[Mapping[str, Any]], nnx.Module]
    bases: tuple[dict[str, Any], ...]
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guess:
    """What names and shapes say: settings, the sizes that they leave undetermined, the names that were looked at."""

    settings: dict[str, Any]
    undetermined: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True)
class Match:
    """A known module that was found in a checkpoint, its names under `prefix`."""

    known: Known
    prefix: str
    guess: Guess

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.prefix + name for name in self.guess.names)


def recognise(shapes: Mapping[str, Shape]) -> list[Match]:
    """Known modules whose names are all there under some prefix, with shapes that fit; stacks and large ones first.

    A module inside another one that was found isn't listed, nor one that has only some of its tensors (an encoder layer
    is a decoder layer without the second attention); two that fit the same tensors are.
    """
    found: list[Match] = []
    patterns = {known: _pattern(known, 0) for known in known_modules().values()}
    for known in sorted(patterns, key=lambda known: (not known.layers, -len(patterns[known].shapes))):
        anchor = min(patterns[known].shapes, default="")
        for prefix in [name.removesuffix(anchor) for name in shapes if anchor and f".{name}".endswith(f".{anchor}")]:
            if any(prefix + anchor in match.keys and match.prefix != prefix for match in found):
                continue
            below = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
            guess = _guess(known, 0, below)
            if guess and not any(Match(known, prefix, guess).keys < match.keys for match in found):
                found.append(Match(known, prefix, guess))
    return found


def guess_settings(known: Known, shapes: Mapping[str, Shape]) -> Guess | None:
    """The settings with which the module has these weights, under its own names; None if there are none."""
    guesses = (_guess(known, index, shapes) for index in range(len(known.bases)))
    return next((guess for guess in guesses if guess), None)


def possible_names(known: Known, keys: Iterable[str]) -> list[str]:
    """Every name that a checkpoint of the module may use, with as many layers as are found anywhere in `keys`."""
    keys, names = list(keys), {}
    for index in range(len(known.bases)):
        pattern = _pattern(known, index)
        names.update(dict.fromkeys(pattern.expanded(pattern.counts_in(keys, anywhere=True))))
    return list(names)


@functools.cache
def known_modules() -> dict[str, Known]:
    """By name: the variants of the command line and the pretrained families."""
    return {name: _variant(name, variant) for name, variant in VARIANTS.items()} | {
        name: _family(name, family) for name, family in FAMILIES.items()
    }


def _variant(name: str, variant: Variant) -> Known:
    base = dict(variant.defaults)
    layers = tuple(size for size in base if size.endswith("_layers"))
    base.update(dict.fromkeys(layers, 1))
    bases = [base]
    if "kv_dim" in base:  # its own first: without it some modules pack their weights
        bases.insert(0, {**base, "kv_dim": base["embed_dim"] + 1})
    return Known(
        name, "module", lambda sizes: nnx.eval_shape(lambda: variant.flax(nnx.Rngs(0), **sizes)), tuple(bases), layers
    )


def _family(name: str, family: Family) -> Known:
    config = dataclasses.asdict(family.config({"model_type": name}))
    sizes = {k: v for k, v in config.items() if k.endswith(("_size", "_heads", "_embeddings"))}
    base = {**sizes, "num_hidden_layers": 1}

    def build(settings: Mapping[str, Any]) -> nnx.Module:
        options = {k: v for k, v in settings.items() if k in base}
        arguments = {k: v for k, v in settings.items() if k not in base}
        made = family.config({"model_type": name, **options})
        return nnx.eval_shape(lambda: family.module(made, **arguments, rngs=nnx.Rngs(0)))

    return Known(name, "family", build, (base, {**base, **family.arguments(())}), ("num_hidden_layers",))


@dataclass(frozen=True)
class _Pattern:
    """Names and base shapes with one layer in each stack, and the setting and stem ("layers.") of each stack."""

    shapes: dict[str, Shape]
    stems: dict[str, str]

    def expanded(self, counts: Mapping[str, int]) -> dict[str, str]:
        """Name with that many layers → the name that has its shape."""
        names = {}
        for name in self.shapes:
            setting = next((setting for setting, stem in self.stems.items() if name.startswith(f"{stem}0.")), None)
            if setting is None:
                names[name] = name
                continue
            stem = self.stems[setting]
            inside = name.removeprefix(f"{stem}0.")
            names.update({f"{stem}{layer}.{inside}": name for layer in range(counts[setting])})
        return names

    def counts_in(self, keys: Iterable[str], *, anywhere: bool = False) -> dict[str, int]:
        """The number of consecutive layers from 0 on, by setting; anywhere: below whatever prefix."""
        dot = "." if anywhere else ""
        keys = [dot + key for key in keys]

        def has(start: str) -> bool:
            return any(start in key if anywhere else key.startswith(start) for key in keys)

        return {
            setting: next(layer for layer in itertools.count() if not has(f"{dot}{stem}{layer}."))
            for setting, stem in self.stems.items()
        }


@functools.cache
def _pattern(known: Known, index: int) -> _Pattern:
    base = known.bases[index]
    shapes, stems = source_shapes(known.build(base)), {}
    for setting in known.layers:
        added = source_shapes(known.build({**base, setting: 2})).keys() - shapes.keys()
        stems[setting] = min(added).partition(".1.")[0] + "."
    return _Pattern(shapes, stems)


@functools.cache
def _slopes(known: Known, index: int) -> dict[str, dict[str, np.ndarray]]:
    """Size → name → by how much each dimension grows when the size grows by 1."""
    base, shapes = known.bases[index], _pattern(known, index).shapes
    slopes = {}
    for size, value in base.items():
        if type(value) is int and size not in known.layers:
            doubled = source_shapes(known.build({**base, size: 2 * value}))
            slopes[size] = {name: (np.array(doubled[name]) - shapes[name]) / value for name in shapes}
    return slopes


def _guess(known: Known, index: int, found: Mapping[str, Shape]) -> Guess | None:
    pattern = _pattern(known, index)
    counts = pattern.counts_in(found)
    names = pattern.expanded(counts)
    if not all(counts.values()) or not names or not all(name in found for name in names):
        return None
    if any(len(found[name]) != len(pattern.shapes[like]) for name, like in names.items()):
        return None
    slopes = _slopes(known, index)
    came = np.concatenate([found[name] for name in names])
    base = np.concatenate([pattern.shapes[like] for like in names.values()])
    matrix = np.stack([np.concatenate([slope[like] for like in names.values()]) for slope in slopes.values()], axis=1)
    solved, determined = _solve(matrix, came - base)
    values = {size: known.bases[index][size] + x for size, x in zip(slopes, solved, strict=True)}
    sizes = {size: round(value) for (size, value), known_ in zip(values.items(), determined, strict=True) if known_}
    fits = np.allclose(matrix @ solved, came - base, atol=1e-6)
    if not fits or any(abs(values[size] - whole) > 1e-6 or whole < 1 for size, whole in sizes.items()):
        return None
    fixed = {name: value for name, value in known.bases[index].items() if name not in slopes}
    return Guess({**fixed, **counts, **sizes}, tuple(size for size in slopes if size not in sizes), frozenset(names))


def _solve(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shortest solution of matrix · x ≈ right, and which of its entries every solution shares."""
    solved = np.linalg.lstsq(matrix, right, rcond=None)[0]
    _, singular, rows = np.linalg.svd(matrix, full_matrices=True)
    rank = int((singular > 1e-9 * singular.max(initial=0.0)).sum())
    return solved, np.abs(rows[rank:]).max(axis=0, initial=0.0) < 1e-9
