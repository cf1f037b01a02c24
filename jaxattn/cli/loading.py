"""A file on the command line into the Flax module that it holds the weights of."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import typer
from flax import nnx

from .._checks import ConversionError
from ..convert.apply import LoadReport, load_state_dict
from ..convert.files import Checkpoint
from ..convert.flax_layout import KEPT, adopt_dtypes, load_flax_state, parameters_of, read_metadata, source_shapes
from ..convert.match import match_keys
from ..convert.naming import constants_of, rules_of
from ..models import FAMILIES, load_model
from ..models.configuration import read_config
from .options import flag
from .recognise import guess_settings, known_modules, possible_names, recognise
from .variants import KNOWN, VARIANTS, did_you_mean, variant_named


@dataclass(frozen=True)
class Target:
    """What a file is loaded into.

    Attributes:
        option: "module" or "family".
        name: of the variant or family.
        settings: the variant's sizes; or the family's "config", as config.json has it, and further "arguments".
    """

    option: str
    name: str
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        if self.option == "family":
            return self.name
        sizes = ", ".join(f"{size}={value}" for size, value in self.settings.items() if value is not None)
        return f"{self.name} ({sizes})"


@dataclass(frozen=True)
class Loaded:
    """A module with the weights of a file.

    Attributes:
        target: what it was loaded into.
        module: the Flax module.
        names: PyTorch's name as the rules have it → the name in the checkpoint, constants included.
        kept: tensors of the checkpoint that are no parameters, by the name there.
        is_flax: the file was in Flax's layout.
        report: what was changed on the way, for a file in PyTorch's layout.
        untold: settings that neither names nor shapes in the file tell and that were given.
        assumed: those that nobody gave.
    """

    target: Target
    module: nnx.Module
    names: Mapping[str, str]
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    is_flax: bool = False
    report: LoadReport | None = None
    untold: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def untold_lines(self) -> list[str]:
        """A sentence for the user to check, if there is anything to check."""
        given = [f"{name}={value} (given)" for name, value in self.untold.items()]
        assumed = [f"{name}={value}" for name, value in self.assumed.items()]
        if not assumed:
            return [f"the file doesn't tell {', '.join(given)}"] if given else []
        options = ", ".join(map(flag, self.assumed))
        told = f"{', '.join(given)}, " if given else ""
        return [f"assumed, the file doesn't tell: {told}{', '.join(assumed)}; say otherwise by {options}"]


@dataclass(frozen=True)
class Wanted:
    """What the options say: everything that `load` can be told."""

    module: str | None = None
    family: str | None = None
    config: Path | Mapping[str, Any] | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def any_size(self) -> bool:
        return any(value is not None for value in self.sizes.values())


def load(checkpoint: Checkpoint, wanted: Wanted) -> Loaded:
    """The module of a checkpoint, in PyTorch's layout or in the one that `jaxattn convert` writes.

    Raises:
        typer.BadParameter: options that name no module, an unknown one, or too few of its sizes.
        ConversionError: the weights do not fit.
    """
    about = read_metadata(checkpoint.metadata)
    if about:
        if any((wanted.module, wanted.family, wanted.config, wanted.prefix, wanted.rename, wanted.any_size)):
            raise typer.BadParameter(
                f"`{checkpoint.path}` was written by `jaxattn convert` and says itself what it holds "
                f"({about[0]} {about[1]}): leave all options away that do."
            )
        return _load_flax(checkpoint, Target(*about[:3]), about[3])
    if (wanted.module is None) == (wanted.family is None):
        raise typer.BadParameter(
            f"say what the weights are of, by --module ({KNOWN}) or by --family ({', '.join(FAMILIES)}); "
            "`jaxattn inspect FILE` tells what they look like."
        )
    try:
        if wanted.family is not None:
            return _load_family(checkpoint, wanted.family, wanted)
        return _load_module(checkpoint, str(wanted.module), wanted)
    except ConversionError as error:
        raise ConversionError(error.headline, [*_fitting(checkpoint, wanted), *error.problems]) from error


def _fitting(checkpoint: Checkpoint, wanted: Wanted) -> list[str]:
    """What these weights are of, where names and shapes fit another module or family than the one asked for."""
    matches = recognise({name: checkpoint.shape(name) for name in checkpoint})
    asked = {(match.known.option, match.known.name) for match in matches}
    if not matches or ("module", wanted.module) in asked or ("family", wanted.family) in asked:
        return []
    listed = dict.fromkeys(match.options for match in matches)
    return [f"Its weights fit {' or '.join(list(listed)[:4])}{', …' if len(listed) > 4 else ''}."]


@contextlib.contextmanager
def wide_enough(checkpoint: Checkpoint) -> Iterator[None]:
    """64-bit types are on inside if the checkpoint has floating tensors of 64 bits."""
    wide = any(checkpoint.dtype(name) == np.float64 for name in checkpoint)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        yield


def _load_module(checkpoint: Checkpoint, name: str, wanted: Wanted) -> Loaded:
    variant = variant_named(name)
    sizes, undetermined = _complete(checkpoint, name, wanted)
    given = {size for size, value in wanted.sizes.items() if value is not None}
    untold = {size: sizes[size] for size in (*undetermined, *variant.choices)}
    module = nnx.eval_shape(lambda: variant.flax(nnx.Rngs(0), **sizes))
    constants = [constant.source for constant in constants_of(module)]
    found = match_keys(
        checkpoint, [*source_shapes(module), *constants], prefix=wanted.prefix, rename=wanted.rename
    ).source_of
    first = {rule.target: found.get(rule.sources[0]) for rule in rules_of(module)}
    adopt_dtypes(module, {path: checkpoint.dtype(key) for path, key in first.items() if key is not None})
    report = load_state_dict(module, checkpoint, prefix=wanted.prefix, rename=wanted.rename)
    kept = {found[constant]: checkpoint[found[constant]] for constant in report.constants}
    told = {size: value for size, value in untold.items() if size in given}
    assumed = {size: value for size, value in untold.items() if size not in given}
    return Loaded(Target("module", name, sizes), module, found, kept, False, report, told, assumed)


def _complete(checkpoint: Checkpoint, name: str, wanted: Wanted) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Sizes as given, else as the shapes in the file have them; and those that these don't tell: they must be given."""
    known = known_modules()[name]
    given = {size: value for size, value in wanted.sizes.items() if value is not None}
    try:
        complete = VARIANTS[name].sizes(**given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if len(given) == len(complete):
        return complete, ()
    possible = possible_names(known, checkpoint)
    found = match_keys(checkpoint, possible, prefix=wanted.prefix, rename=wanted.rename).source_of
    guess = guess_settings(known, {expected: checkpoint.shape(key) for expected, key in found.items()})
    if guess is None:  # these weights are not the module's: the defaults serve to say what is wrong
        return complete, ()
    missing = [size for size in guess.undetermined if size not in given]
    if missing:
        raise typer.BadParameter(f"{name} needs {', '.join(map(flag, missing))}: the shapes in the file don't tell.")
    return {**complete, **guess.settings, **given}, guess.undetermined


def _load_family(checkpoint: Checkpoint, name: str, wanted: Wanted) -> Loaded:
    if name not in FAMILIES:
        meant = did_you_mean(name, FAMILIES)
        raise typer.BadParameter(f"unknown family {name!r}{meant}; known are {', '.join(FAMILIES)}.")
    if wanted.any_size:
        raise typer.BadParameter(f"the sizes of {name} are in its config.json: leave their options away.")
    family, path = FAMILIES[name], checkpoint.path
    given = wanted.config or (path if path.is_dir() else path.parent)
    config = {"model_type": name, **(given if isinstance(given, Mapping) else read_config(given))}
    if config["model_type"] != name:
        raise ValueError(f"config.json says that this is a {config['model_type']!r}, not a {name!r}.")
    view = _View(checkpoint, wanted)
    model, report = load_model(config, view)
    expected = {*source_shapes(model), *report.constants}
    found = {}
    for key in view:
        final = report.unwrapped.get(key) or report.renamed.get(key, key)
        for candidate in (final, final.removeprefix(f"{family.prefix}.")):
            if candidate in expected:
                found.setdefault(candidate, view.keys_there[key])
    kept = {found[constant]: checkpoint[found[constant]] for constant in report.constants}
    report.outside_prefix += view.outside
    report.renamed = {**view.renamed, **report.renamed}
    settings = {"config": config, "arguments": dict(family.arguments(list(expected)))}
    return Loaded(Target("family", name, settings), model, found, kept, report=report)


class _View(Mapping[str, np.ndarray]):
    """A checkpoint after --rename and --prefix."""

    def __init__(self, checkpoint: Checkpoint, wanted: Wanted):
        self._checkpoint = checkpoint
        self.renamed = match_keys(checkpoint, (), rename=wanted.rename).renamed
        self.outside: list[str] = []
        self.keys_there: dict[str, str] = {}
        start = wanted.prefix.rstrip(".") + "." if wanted.prefix else ""
        clashes = []
        for key in checkpoint:
            name = self.renamed.get(key, key)
            if not name.startswith(start):
                self.outside.append(key)
            elif self.keys_there.setdefault(name.removeprefix(start), key) != key:
                clashes.append(f"`{self.keys_there[name.removeprefix(start)]}` and `{key}` both come to `{name}`.")
        if clashes:
            raise ConversionError("Keys of the checkpoint collide.", clashes)
        if not self.keys_there:
            raise ConversionError(f"`{checkpoint.path}` holds nothing below the prefix `{start}`.")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._checkpoint[self.keys_there[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_there)

    def __len__(self) -> int:
        return len(self.keys_there)


def _load_flax(checkpoint: Checkpoint, target: Target, renamed: Mapping[str, str]) -> Loaded:
    state = {path: checkpoint[path] for path in checkpoint if not path.startswith(KEPT)}
    try:
        module = nnx.eval_shape(lambda: _build(target))
    except (KeyError, TypeError, ValueError) as error:
        raise ConversionError(
            f"`{checkpoint.path}` says that it holds {target}, which can't be built: {error}"
        ) from error
    parameters = parameters_of(module)
    adopt_dtypes(module, {path: array.dtype for path, array in state.items() if path in parameters})
    load_flax_state(module, state)
    found = {name: renamed.get(name, name) for name in source_shapes(module)}
    kept = {name.removeprefix(KEPT): checkpoint[name] for name in checkpoint if name.startswith(KEPT)}
    return Loaded(target, module, found, kept, is_flax=True)


def _build(target: Target) -> nnx.Module:
    if target.option == "module":
        return VARIANTS[target.name].flax(nnx.Rngs(0), **target.settings)
    family = FAMILIES[target.name]
    return family.module(family.config(target.settings["config"]), **target.settings["arguments"], rngs=nnx.Rngs(0))
