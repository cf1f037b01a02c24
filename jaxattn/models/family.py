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
        renames: from the same names, old name → the one that the module's rules read.
    """

    module: Callable[..., Any]
    config: Callable[[Mapping[str, Any]], Any]
    prefix: str
    arguments: Callable[[Sequence[str]], Mapping[str, Any]] = field(default=nothing)
    renames: Callable[[Sequence[str]], Mapping[str, str]] = field(default=nothing)
