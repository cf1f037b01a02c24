"""Weights in Flax's layout: each parameter under its path in the module, as the module holds it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._checks import ConversionError, shape_text
from .._version import __version__
from .apply import assign, parameters_of
from .layout import aligned_copy, same_bits
from .naming import rules_of

Shape = tuple[int, ...]

#: What the metadata of a safetensors file in this layout says under "format"; "pt" is PyTorch's.
FORMAT = "flax"
#: Before the name of a tensor of the source that is no parameter: it is kept as it was.
KEPT = "torch/"


def flax_state(module: nnx.Module) -> dict[str, np.ndarray]:
    """The parameters as NumPy arrays by path, in Flax's layouts: kernel (in, out), scale, embedding."""
    return {path: np.asarray(value) for path, value in parameters_of(module).items()}


def load_flax_state(module: nnx.Module, state: Mapping[str, np.ndarray]) -> None:
    """The inverse of `flax_state`, in place; when anything is wrong nothing is assigned.

    Raises:
        ConversionError: lists every missing, unexpected and mismatched path.
    """
    parameters = parameters_of(module)
    problems = [f"missing `{path}`" for path in parameters if path not in state]
    problems += [f"unexpected `{path}`" for path in state if path not in parameters]
    for path in parameters.keys() & state.keys():
        came, wanted = state[path], parameters[path]
        if came.shape != wanted.shape or came.dtype != wanted.dtype:
            problems.append(
                f"`{path}` is {came.dtype.name} {shape_text(came.shape)}, "
                f"the module's parameter {np.dtype(wanted.dtype).name} {shape_text(wanted.shape)}"
            )
    if problems:
        raise ConversionError(f"The weights do not fit {type(module).__name__}; nothing was loaded.", problems)
    assign(module, {path: jax.device_put(aligned_copy(state[path])) for path in parameters})


def adopt_dtypes(module: nnx.Module, dtypes: Mapping[str, np.dtype]) -> None:
    """Give an abstract module's parameters the floating dtypes that its weights have, so that they load as they are."""
    floating = {path: dtype for path, dtype in dtypes.items() if jnp.issubdtype(dtype, jnp.floating)}
    parameters = parameters_of(module)
    assign(module, {p: jax.ShapeDtypeStruct(parameters[p].shape, dtype) for p, dtype in floating.items()})


def source_shapes(module: nnx.Module) -> dict[str, Shape]:
    """The names and shapes that PyTorch's weights of this module have."""
    parameters = parameters_of(module)
    return {
        source: shape
        for rule in rules_of(module)
        for source, shape in zip(rule.sources, rule.transform.source_shapes(parameters[rule.target].shape), strict=True)
    }


def differences(
    module: nnx.Module, flax: Mapping[str, np.ndarray], torch: Mapping[str, np.ndarray], names: Mapping[str, str]
) -> Iterator[str]:
    """Tensors of the two layouts that don't become each other bit for bit; one rule at a time is read.

    Args:
        module: whose rules apply.
        flax: arrays by path.
        torch: arrays in PyTorch's layout.
        names: expected name → the name in `torch`.
    """
    for rule in rules_of(module):
        tensors = rule.transform.backward(flax[rule.target])
        for source, ours in zip(rule.sources, tensors, strict=True):
            if not same_bits(ours, torch[names[source]]):
                yield names[source]


@dataclass(frozen=True)
class Original:
    """The file in PyTorch's layout that a file in Flax's was made of, and how it was read.

    Attributes:
        path: seen from the directory of the file in Flax's layout.
        key: where its state dict lies in it.
        prefix: the path below which its tensors were taken.
        rename: old → new leading segments.
        order: its names, as they follow each other in it.
    """

    path: str
    key: str | None = None
    prefix: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()


def write_metadata(
    option: str, name: str, settings: Mapping[str, Any], names: Mapping[str, str], original: Original
) -> dict[str, str]:
    """What a file in this layout says about itself: `option` ("module" or "family"), its name, settings and origin."""
    renamed = {expected: source for expected, source in names.items() if expected != source}
    about = {"format": FORMAT, "jaxattn": __version__, option: name, "original": json.dumps(asdict(original))}
    return {**about, "settings": json.dumps(dict(settings)), "torch_names": json.dumps(renamed)}


def read_original(metadata: Mapping[str, str]) -> Original | None:
    """What a file in this layout says of its original, if anything.

    Raises:
        ConversionError: it can't be understood.
    """
    if "original" not in metadata:
        return None
    try:
        came = json.loads(metadata["original"])
        original = Original(came["path"], came["key"], came["prefix"], came["rename"], came["order"])
        texts = original.path, original.key or "", original.prefix, *original.rename.values(), *original.order
        if all(isinstance(text, str) for text in texts):
            return original
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        pass
    raise ConversionError("The file says what it was converted from, but its text is damaged.")


def read_metadata(metadata: Mapping[str, str]) -> tuple[str, str, dict[str, Any], dict[str, str]] | None:
    """(option, name, settings, torch's names where they differ) as `write_metadata` took them; None for another layout.

    Raises:
        ConversionError: it claims this layout and can't be understood.
    """
    if metadata.get("format") != FORMAT or "jaxattn" not in metadata:
        return None
    option = "family" if "family" in metadata else "module"
    try:
        settings, names = json.loads(metadata["settings"]), json.loads(metadata["torch_names"])
        if isinstance(settings, dict) and isinstance(names, dict) and all(isinstance(n, str) for n in names.values()):
            return option, metadata[option], settings, names
    except (KeyError, ValueError, RecursionError):
        pass
    raise ConversionError("The file says that `jaxattn convert` wrote it, but not of what module: its text is damaged.")
