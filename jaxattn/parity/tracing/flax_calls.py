"""Every call that a Flax module makes of its submodules, and single calls of one of them."""

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...capture import Event, capture_events
from ..arguments import Arguments
from ..outputs import Flat, flatten_result
from ..settings import highest_precision


@dataclass(frozen=True)
class FlaxCall:
    """One call of one submodule.

    Attributes:
        path: "" is the called module itself.
        call: 0, 1, … of a module that is called again.
        kind: class name.
        outputs: what it returned.
        inside: what its attention operation recorded (q, logits, …).
        given: (positional, keyword) arguments; None if the call couldn't be watched.
    """

    path: str
    call: int
    kind: str
    outputs: Flat
    inside: dict[str, np.ndarray] = field(default_factory=dict)
    given: tuple[Any, Any] | None = None


def modules_of(flax_module: nnx.Module) -> dict[str, nnx.Module]:
    """Every module by its path, "" is the whole one."""
    return {".".join(map(str, path)): module for path, module in nnx.iter_modules(flax_module)}


def calls_of(module: nnx.Module, arguments: Arguments, *, names: list[str] | None = None) -> list[FlaxCall]:
    """Call `module` and keep every call inside it, in the order in which they were finished; the last is its own.

    Args:
        module: any NNX module.
        arguments: of its call.
        names: of torch's arguments, for a module that calls its own otherwise: then all are passed by position.
    """
    args, kwargs = arguments.call_with([jnp.asarray(array) for array in arguments.arrays])
    if names is not None and not _takes(module, args, kwargs):
        args, kwargs = (*args, *(kwargs[name] for name in names if name in kwargs)), {}
    with highest_precision():
        try:
            result, events = capture_events(module, *args, **kwargs)
        except NotImplementedError as error:
            if "`capture`" not in str(error):
                raise
            result, events = module(*args, **kwargs), []
    calls = _grouped(events)
    if not calls or calls[-1].path:
        calls.append(FlaxCall("", 0, type(module).__name__, _flat(result)))
    else:
        calls[-1] = replace(calls[-1], outputs=_flat(result))
    return calls


def _takes(module: nnx.Module, args: Any, kwargs: Any) -> bool:
    try:
        inspect.signature(module.__call__).bind(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue] -- what is captured can be called
    except (TypeError, ValueError):
        return False
    return True


def _grouped(events: list[Event]) -> list[FlaxCall]:
    calls: list[FlaxCall] = []
    counts: dict[str, int] = {}
    inside: dict[str, dict[str, np.ndarray]] = {}
    for event in events:
        if event.kind == "operation":
            inside.setdefault(event.path, {})[event.name] = np.asarray(event.value)
        elif event.name == "output":
            counts[event.path] = counts.get(event.path, -1) + 1
            recorded = inside.pop(event.path, {})
            outputs = _flat(event.value)
            calls.append(FlaxCall(event.path, counts[event.path], event.kind, outputs, recorded, event.given))
    return calls


def _flat(result: Any) -> Flat:
    flat = flatten_result(result)
    return Flat(flat.named, flat.paths, tuple(np.asarray(array) for array in flat.arrays), flat.ignored)
