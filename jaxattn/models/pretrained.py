"""Pretrained models from a directory in Hugging Face's layout: config.json beside the weights."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .._checks import ConversionError
from .._tensors import as_numpy
from .._typing import DType, Precision
from ..convert.apply import LoadReport, load_state_dict
from ..convert.files import Checkpoint, read_checkpoint
from ..convert.match import WRAPPERS
from ..convert.problems import check_mapping, dtype_name, kind_problem
from . import bert
from .configuration import read_config
from .family import Family

#: `model_type` in config.json → the family.
FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
}


def from_pretrained(
    directory: str | os.PathLike[str], *, dtype: DType = None, param_dtype: DType = None, precision: Precision = None
) -> Any:
    """The Flax model of a directory in Hugging Face's layout, weights loaded; `load_pretrained` also gives the report.

    Args:
        directory: it holds config.json and the weights, in a format of `jaxattn.read_checkpoint`.
        dtype: of the computation; None is the parameters'.
        param_dtype: cast the weights to this dtype; None keeps the checkpoint's, bit for bit.
        precision: of the matrix products.

    Raises:
        FileNotFoundError: no such directory, or no config.json in it.
        ValueError: config.json is no JSON object, or asks for something that is not supported.
        ConversionError: weights that cannot be read or do not fit.
    """
    return load_pretrained(directory, dtype=dtype, param_dtype=param_dtype, precision=precision)[0]


def load_pretrained(
    directory: str | os.PathLike[str], *, dtype: DType = None, param_dtype: DType = None, precision: Precision = None
) -> tuple[Any, LoadReport]:
    """As `from_pretrained`, with the LoadReport: names that were changed, heads and constants that were not read."""
    options, weights = read_config(directory), read_checkpoint(directory)
    return load_model(options, weights, dtype=dtype, param_dtype=param_dtype, precision=precision)


def load_model(
    options: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    dtype: DType = None,
    param_dtype: DType = None,
    precision: Precision = None,
) -> tuple[Any, LoadReport]:
    """The model of a configuration and a state dict, as `load_pretrained` makes it of their files.

    Args:
        options: the content of config.json.
        weights: Hugging Face's names, with or without the family's prefix ("bert."); heads outside the prefix are left.
        dtype: of the computation; None is the parameters'.
        param_dtype: cast the weights to this dtype; None keeps theirs.
        precision: of the matrix products.

    Raises:
        ValueError: the configuration asks for something that is not supported.
        ConversionError: the weights do not fit it.
    """
    family = family_of(options)
    config = family.config(options)
    check_mapping(weights)
    has_prefix = any(_segments(name)[0] == family.prefix for name in weights)
    prefix = f"{family.prefix}." if has_prefix else ""
    names = {name: ".".join(_segments(name)) for name in weights}
    names = {name: clean.removeprefix(prefix) for name, clean in names.items() if clean.startswith(prefix)}
    shapes = {clean: _shape(weights, name) for name, clean in names.items()}
    if problems := family.misfits(config, shapes):
        raise ConversionError("The configuration does not fit the weights; nothing was built.", problems)
    param_dtype = _only_dtype(weights, names) if param_dtype is None else jnp.dtype(param_dtype)
    if jax.dtypes.canonicalize_dtype(param_dtype) != param_dtype:
        raise ConversionError(
            f"The weights would be {param_dtype.name} while 64-bit types are off in JAX, which would truncate them: "
            "pass param_dtype=jnp.float32, or turn them on (jax.enable_x64(True))."
        )
    arguments = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
    arguments.update(family.arguments(list(names.values())))
    model = nnx.eval_shape(lambda: family.module(config, **arguments, rngs=nnx.Rngs(0)))
    rename = family.renames(list(names))
    return model, load_state_dict(model, _Cast(weights, param_dtype), prefix=prefix, rename=rename)


def family_of(options: Mapping[str, Any]) -> Family:
    """The family that `model_type` names.

    Raises:
        ValueError: there is none, or an unknown one.
    """
    kind = options.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        came = f"got {kind!r}" if "model_type" in options else "the configuration has none"
        raise ValueError(f"`model_type` must be one of {', '.join(map(repr, FAMILIES))}, {came}.")
    return FAMILIES[kind]


def _segments(name: str) -> list[str]:
    """The path without the segments that PyTorch's wrappers put in front of it; the last segment stays."""
    segments = name.split(".")
    wrapped = 0
    while wrapped < len(segments) - 1 and segments[wrapped] in WRAPPERS:
        wrapped += 1
    return segments[wrapped:]


def _shape(weights: Mapping[str, Any], name: str) -> tuple[int, ...]:
    return weights.shape(name) if isinstance(weights, Checkpoint) else tuple(getattr(weights[name], "shape", ()))


def _only_dtype(weights: Mapping[str, Any], names: Mapping[str, str]) -> np.dtype:
    """The one floating dtype among the model's tensors."""
    found: dict[np.dtype, str] = {}
    for name in names:
        tensor = weights[name]
        if kind_problem(name, tensor):
            continue  # load_state_dict lists it with all others
        dtype = jnp.dtype(dtype_name(tensor))
        if jnp.issubdtype(dtype, jnp.floating):
            found.setdefault(dtype, name)
    if len(found) > 1:
        listed = [f"`{name}` is {dtype.name}" for dtype, name in found.items()]
        raise ConversionError("The checkpoint mixes dtypes: pass param_dtype= to cast all weights to one.", listed)
    return next(iter(found), np.dtype(np.float32))


class _Cast(Mapping[str, Any]):
    """The weights with every floating tensor cast, when it is made an array: not before its shape was looked at."""

    def __init__(self, weights: Mapping[str, Any], dtype: DType):
        self._weights, self._dtype = weights, jnp.dtype(dtype)

    def __getitem__(self, name: str) -> Any:
        tensor = self._weights[name]
        castable = kind_problem(name, tensor) is None and jnp.issubdtype(jnp.dtype(dtype_name(tensor)), jnp.floating)
        return _CastTensor(tensor, self._dtype) if castable else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@dataclass(frozen=True)
class _CastTensor:
    """An array that will be cast."""

    tensor: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray:
        return as_numpy(self.tensor).astype(self.dtype if dtype is None else dtype, copy=bool(copy))
