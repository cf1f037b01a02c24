"""What can be wrong between a checkpoint and a module: one sentence each, with what to do."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from .._checks import ConversionError, listed, shape_text
from .._tensors import as_numpy, is_tensor, tensor_problem
from .._text import argument
from .diagnose import foreign_kind
from .layout import same_bits
from .match import KeyMap, Nearest, advice, packing_hint
from .rules import Count, Rule

#: For so many missing keys, and as many unexpected ones, a message looks for what was meant.
SUGGESTIONS = 50


def check_module(module: Any) -> None:
    """Weights go into, and come from, an NNX module."""
    if not isinstance(module, nnx.Module):
        raise TypeError(f"`module` must be a flax nnx.Module, got {type(module).__name__}.")


def check_mapping(state_dict: Any) -> None:
    """A mapping from strings to arrays or tensors, with something in it."""
    if not isinstance(state_dict, Mapping):
        raise ConversionError(
            f"A state dict is a mapping from names to tensors, got {type(state_dict).__name__}; "
            "pass module.state_dict() or jaxattn.read_checkpoint(path)."
        )
    if not state_dict:
        raise ConversionError("The state dict is empty: there is nothing to load.")
    wrong = [key for key in state_dict if not isinstance(key, str)]
    if wrong:
        raise ConversionError("Keys of a state dict are strings.", [f"got {key!r}" for key in wrong])
    nested = (
        [key for key, value in state_dict.items() if isinstance(value, Mapping)] if isinstance(state_dict, dict) else []
    )
    if nested:
        places = listed([f"state_dict[{key!r}]" for key in nested])
        raise ConversionError(f"The checkpoint is nested under {listed([repr(key) for key in nested])}: pass {places}.")


def coverage_problems(missing: list[str], keys: KeyMap) -> list[str]:
    """Missing and unexpected keys, each with its nearest counterpart, and what they point at as a whole."""
    foreign = foreign_kind(keys.unexpected)
    problems = [f"The state dict {foreign}."] if foreign else advice(missing, keys.unexpected)
    problems += packing_hint(missing, keys.unexpected)
    given, wanted = Nearest(keys.unexpected), Nearest(missing)
    for place, name in enumerate(missing):
        near = given(name) if place < SUGGESTIONS else None
        problems.append(
            f"missing `{name}`"
            + (f"; the checkpoint has `{near}`, pass {argument('rename')} if it is that" if near else "")
        )
    for place, key in enumerate(keys.unexpected):
        near = wanted(key) if place < SUGGESTIONS else None
        problems.append(f"unexpected `{key}`" + (f"; the module expects `{near}`" if near else ""))
    return problems


def kind_problem(name: str, value: Any) -> str | None:
    """Why an entry of a state dict can't be a weight, whatever its shape, or None."""
    if is_tensor(value):
        problem = tensor_problem(value)
        return f"`{name}` {problem}" if problem else None
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"`{name}` is a ShapeDtypeStruct, which holds no values: load real arrays"
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return f"`{name}` is a {type(value).__name__}, no tensor: drop it or read another entry"
    return None


def fit_problems(rule: Rule, parameter: Any, read: Callable[[str], Any]) -> list[str]:
    """Kind, shape and dtype of the sources of one rule against its parameter."""
    problems = []
    for source, shape in zip(rule.sources, rule.transform.source_shapes(parameter.shape), strict=True):
        try:
            tensor = read(source)
        except ConversionError as error:
            problems.append(f"`{source}`: {error}")
            continue
        if (problem := kind_problem(source, tensor)) is not None:
            problems.append(problem)
        elif tuple(tensor.shape) != shape:
            problems.append(_shape_problem(source, tuple(tensor.shape), shape))
        elif isinstance(rule.transform, Count):
            problems += count_problems(source, tensor, rule.transform)
        else:
            problems += dtype_problems(source, dtype_name(tensor), np.dtype(parameter.dtype).name)
    return problems


def count_problems(name: str, tensor: Any, count: Count) -> list[str]:
    """A count is an integer that the parameter can hold exactly."""
    if dtype_name(tensor) != count.source_dtype.name:
        return [f"`{name}` is {dtype_name(tensor)}, a count is {count.source_dtype.name}: check the key"]
    value = int(as_numpy(tensor))
    if not 0 <= value <= count.most:
        return [f"`{name}` must be a count from 0 to {count.most}, got {value}: set it to one of those"]
    return []


def dtype_name(tensor: Any) -> str:
    """The dtype of an array or a torch tensor, in NumPy's words."""
    return getattr(tensor.dtype, "name", None) or str(tensor.dtype).removeprefix("torch.")


def _shape_problem(name: str, came: tuple[int, ...], expected: tuple[int, ...]) -> str:
    sentence = f"`{name}` has shape {shape_text(came)}, expected {shape_text(expected)}"
    if came == expected[::-1] and len(came) == 2:
        return (
            f"{sentence}: the shape matches transposed; a checkpoint in PyTorch's layout holds (out, in), pass its .T"
        )
    if len(came) == len(expected) and came[1:] == expected[1:]:
        if came[0] == 3 * expected[0]:
            return f"{sentence}: it looks packed, q/k/v as (3E, E)"
        if 3 * came[0] == expected[0]:
            return f"{sentence}: packed q/k/v (3E, E) are wanted; stack q, k and v along axis 0"
    return sentence


def dtype_problems(name: str, came: str, expected: str) -> list[str]:
    """`came` can't become a parameter of dtype `expected`; equal ones can, unless JAX would truncate them."""
    if came != expected and "float" not in came:
        return [f"`{name}` holds {came}, the module's parameter is {expected}: no weight has this kind, check the key"]
    if came == "float64" and jax.dtypes.canonicalize_dtype(came) != came:
        return [
            f"`{name}` is float64 while 64-bit types are off in JAX, which would truncate it: cast the checkpoint to "
            "float32, or turn them on (jax.enable_x64(True)) and build the module with param_dtype=jnp.float64"
        ]
    if came != expected:
        return [
            f"`{name}` is {came}, the module's parameter is {expected}: build the module with "
            f"param_dtype=jnp.{came}, or cast the checkpoint first"
        ]
    return []


def tie_problems(ties: Mapping[str, str], state_dict: Mapping[Any, Any]) -> list[str]:
    """Two keys of one shared tensor must hold the same bits."""
    return [
        f"`{stored}` and `{name}` are one tensor in the module, and differ here: decide for one, and drop the other"
        for name, stored in ties.items()
        if name != stored and not _same(state_dict[name], state_dict[stored])
    ]


def _same(one: Any, other: Any) -> bool:
    if one is other or (is_tensor(one) and is_tensor(other) and one.data_ptr() == other.data_ptr() != 0):
        return tuple(one.shape) == tuple(other.shape)
    if kind_problem("", one) or kind_problem("", other):
        return True  # said elsewhere
    return tuple(one.shape) == tuple(other.shape) and same_bits(as_numpy(one), as_numpy(other))


def constant_problems(constants: Mapping[str, np.ndarray | None], given: Mapping[str, np.ndarray]) -> list[str]:
    """Tensors that are no weights must have the only value that the module computes with."""
    known = {name: values for name, values in constants.items() if name in given and values is not None}
    return [
        f"`{name}` must be the constant that {name.rsplit('.', 1)[-1]} stands for (it is no weight), got other values"
        for name, values in known.items()
        if not np.array_equal(given[name].flat[: values.size], values.reshape(-1))
    ]
