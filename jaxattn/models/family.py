"""What loading needs to know about a family of pretrained models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def nothing(names: Sequence[str]) -> Mapping[str, Any]:
    del names
    return {}


@dataclass(frozen=True)
class Family:
    """A module class and how to build it for a checkpoint.

    Args:
        module: `module(config, **arguments, dtype=, param_dtype=, precision=, rngs=)` makes the Flax module.
        config: the content of config.json → the configuration; ValueError for what is not supported.
        prefix: the path segment under which a checkpoint with heads holds this model.
        arguments: from the checkpoint's names (without prefix), constructor arguments that its keys decide.
        misfits: from the configuration, and the shapes of the checkpoint's tensors by name, why no such model can be in
            it; what that needs must not depend on a number in the configuration.
        renames: from the same names, old name → the one that the module's rules read.
    """

    module: Callable[..., Any]
    config: Callable[[Mapping[str, Any]], Any]
    prefix: str
    arguments: Callable[[Sequence[str]], Mapping[str, Any]] = field(default=nothing)
    misfits: Callable[[Any, Mapping[str, Sequence[int]]], list[str]] = field(default=lambda config, shapes: [])
    renames: Callable[[Sequence[str]], Mapping[str, str]] = field(default=nothing)
