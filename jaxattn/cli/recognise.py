"""Which known module a checkpoint's names and shapes belong to, and the sizes it was built with.

Every dimension of every weight is an affine function of the constructor's sizes. Building a module with one size after
the other doubled gives the coefficients, so a variant is recognised by its rules and nothing else.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from .._text import argument
from ..convert.flax_layout import Shape, source_shapes
from ..models import FAMILIES
from ..models.family import Family, nothing
from .options import flag
from .variants import VARIANTS, Variant

#: The number of a layer inside a name, as Python writes numbers: other digits are part of a name.
INDEX = r"(0|[1-9][0-9]{0,8})(?=\.)"


@dataclass(frozen=True, eq=False)
class Known:
    """A module or family by its name on the command line.

    Attributes:
        name: `multi_head`, `bert`.
        option: "module" or "family".
        build: settings → the abstract module.
        bases: settings to start from, one for each set of names that the module can have; integers are sizes.
        layers: the settings that count layers, one for each stack; 1 in the bases.
        renames: from a checkpoint's names, old name → the one that the rules read.
    """

    name: str
    option: str
    build: Callable[[Mapping[str, Any]], nnx.Module]
    bases: tuple[dict[str, Any], ...]
    layers: tuple[str, ...] = ()
    renames: Callable[[Sequence[str]], Mapping[str, str]] = nothing

    @property
    def forms(self) -> range:
        """The bases to recognise it by: a module's further ones have the names of another module."""
        return range(len(self.bases) if self.option == "family" else 1)


@dataclass(frozen=True)
class Guess:
    """What names and shapes say: settings, the sizes that they leave undetermined, the names that were looked at."""

    settings: dict[str, Any]
    undetermined: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True)
class Match:
    """A known module that was found in a checkpoint under `prefix`: `keys` are its names there."""

    known: Known
    prefix: str
    guess: Guess
    keys: frozenset[str]

    @property
    def options(self) -> str:
        """What tells a command that these are the weights."""
        options = [f"--{self.known.option} {self.known.name}"]
        options += [argument("prefix", self.prefix.rstrip("."))] if self.prefix else []
        if self.known.option == "module":
            options += [f"{flag(size)} …" for size in self.guess.undetermined]
        return " ".join(options)


def recognise(shapes: Mapping[str, Shape]) -> list[Match]:
    """Known modules whose names are all there under some prefix, with shapes that fit; stacks and large ones first.

    A module inside another one that was found isn't listed, nor one that has only some of its tensors (an encoder layer
    is a decoder layer without the second attention); two that fit the same tensors are.
    """
    found: list[Match] = []
    holding: dict[str, list[Match]] = {}
    same = {name: name for name in shapes}
    endings = _by_last_segment(shapes)
    forms = [(known, index, _pattern(known, index)) for known in known_modules().values() for index in known.forms]
    for known, index, pattern in sorted(forms, key=lambda form: (not form[0].layers, -len(form[2].shapes))):
        renames = known.renames(list(shapes))
        there = {renames.get(name, name): name for name in shapes} if renames else same
        there = there if len(there) == len(shapes) else same  # two names came to one
        ends = endings if there is same else _by_last_segment(there)
        anchor = min(pattern.shapes, default="")
        guesses: dict[tuple[tuple[str, Shape], ...], Guess | None] = {}  # modules that are alike: one guess for all
        for prefix, below in _below_each(there, ends, shapes, anchor).items():
            if (alike := tuple(below.items())) not in guesses:
                guesses[alike] = _guess(known, index, below)
            guess = guesses[alike]
            if guess is None:
                continue
            match = Match(known, prefix, guess, frozenset(there[prefix + name] for name in guess.names))
            others = holding.get(there[prefix + anchor], ())
            if not any(other.prefix != prefix or match.keys < other.keys for other in others):
                found.append(match)
                for key in match.keys:
                    holding.setdefault(key, []).append(match)
    return found


#: Segments of a name before a module's own that are looked at.
_DEEPEST = 40


def _by_last_segment(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found


def _below_each(
    there: Mapping[str, str], ends: Mapping[str, list[str]], shapes: Mapping[str, Shape], anchor: str
) -> dict[str, dict[str, Shape]]:
    """Every prefix under which there is a tensor `anchor` → name below it → shape; each name is read once."""
    if not anchor:
        return {}
    below: dict[str, dict[str, Shape]] = {
        name.removesuffix(anchor): {}
        for name in ends.get(anchor.rpartition(".")[2], ())
        if f".{name}".endswith(f".{anchor}")
    }
    if not below:
        return {}
    for name, key in there.items():
        start = 0
        for _ in range(_DEEPEST):
            if (prefix := name[:start]) in below:
                below[prefix][name[start:]] = shapes[key]
            start = name.find(".", start) + 1
            if not start:
                break
    return below


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

    return Known(
        name, "family", build, (base, {**base, **family.arguments(())}), ("num_hidden_layers",), family.renames
    )


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
        start = r"(?:^|\.)" if anywhere else "^"
        places = {setting: re.compile(start + re.escape(stem) + INDEX) for setting, stem in self.stems.items()}
        there: dict[str, set[int]] = {setting: set() for setting in places}
        for key in keys:
            for setting, place in places.items():
                there[setting].update(map(int, place.findall(key)))
        return {
            setting: next(layer for layer in itertools.count() if layer not in layers)
            for setting, layers in there.items()
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
    if not all(counts.values()):
        return None
    names = pattern.expanded(counts)
    if not names or not all(name in found for name in names):
        return None
    came: dict[str, Shape] = {}
    if any(came.setdefault(like, found[name]) != found[name] for name, like in names.items()):
        return None  # layers that are not alike
    solution = _sizes(known, index, tuple(came[like] for like in pattern.shapes))
    if solution is None:
        return None
    sizes, undetermined = solution
    fixed = {name: value for name, value in known.bases[index].items() if name not in (*sizes, *undetermined)}
    return Guess({**fixed, **counts, **sizes}, undetermined, frozenset(names))


@functools.lru_cache(1024)
def _sizes(known: Known, index: int, came: tuple[Shape, ...]) -> tuple[dict[str, int], tuple[str, ...]] | None:
    """The sizes with which the tensors of the pattern have these shapes, and those that they leave open."""
    shapes = _pattern(known, index).shapes
    if any(len(shape) != len(base) for shape, base in zip(came, shapes.values(), strict=True)):
        return None
    slopes = _slopes(known, index)
    right = np.concatenate(came) - np.concatenate(list(shapes.values()))
    matrix = np.stack([np.concatenate([slope[name] for name in shapes]) for slope in slopes.values()], axis=1)
    solved, determined = _solve(matrix, right)
    values = {size: known.bases[index][size] + x for size, x in zip(slopes, solved, strict=True)}
    sizes = {size: round(value) for (size, value), known_ in zip(values.items(), determined, strict=True) if known_}
    fits = np.allclose(matrix @ solved, right, atol=1e-6)
    if not fits or any(abs(values[size] - whole) > 1e-6 or whole < 1 for size, whole in sizes.items()):
        return None
    return sizes, tuple(size for size in slopes if size not in sizes)


def _solve(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shortest solution of matrix · x ≈ right, and which of its entries every solution shares."""
    solved = np.linalg.lstsq(matrix, right, rcond=None)[0]
    _, singular, rows = np.linalg.svd(matrix, full_matrices=True)
    rank = int((singular > 1e-9 * singular.max(initial=0.0)).sum())
    return solved, np.abs(rows[rank:]).max(axis=0, initial=0.0) < 1e-9
