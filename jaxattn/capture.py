"""Looking inside a module: what every part of it computed in one call, by path and name."""

import contextvars
import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import jax
from flax import nnx
from jax.extend.core import get_opaque_trace_state

from ._switching import Setting, Switches, surely
from .core.record import OPERANDS, listening

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One captured value.

    Attributes:
        path: of the module that was running, "layers.1.self_attn"; "" is the captured module itself.
        name: "output", another field of a NamedTuple, or what the operation recorded ("q", "logits", "weights", …).
        kind: the module's class, or "operation".
        inputs: shapes of the arrays that went in.
        value: what came out.
        given: (positional, keyword) arguments of a module's call; None for an operation.
    """

    path: str
    name: str
    kind: str
    inputs: tuple[Shape, ...]
    value: Any = field(repr=False)
    given: tuple[Any, Any] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def shape(self) -> Shape | None:
        """Of the value; None for anything but one array."""
        return getattr(self.value, "shape", None)


def capture(module: nnx.Module, /, *inputs: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Call `module` and keep what its parts computed: `result, seen = capture(model, x)`.

    seen["layers.1.self_attn:weights"] are a layer's attention weights [*B, N, T, S], after softmax and before dropout,
    whether or not the module returns any; ":q", ":k", ":v", ":logits" are there likewise, and every module's result is
    "path:output" (a NamedTuple's fields are entries of their own). The module itself has the path "".

    Works inside jax.jit, grad, vmap; the captured values are then ones of theirs, to be returned. The module is called
    once and is not changed by being watched.

    Args:
        module: any NNX module, layers of Flax included.
        inputs: of the call.
        kwargs: of the call.

    Returns:
        The call's result, and values by "path:name" in the order in which they were finished. What has the same key,
        as the parts of a module that is called twice, is a tuple in that order. A module found under two paths has the
        first one that nnx.iter_modules gives.

    Raises:
        TypeError: `module` is no NNX module, or can't be called.
        NotImplementedError: a part is called inside a jit, remat, scan, vmap, grad of the module's own, or as a copy
            that such a transformation made: its values can't leave it. The message has its path.
    """
    result, events = capture_events(module, *inputs, **kwargs)
    values: dict[str, list[Any]] = {}
    for event in events:
        values.setdefault(event.key, []).append(event.value)
    return result, {key: kept[0] if len(kept) == 1 else tuple(kept) for key, kept in values.items()}


def capture_events(module: nnx.Module, /, *inputs: Any, **kwargs: Any) -> tuple[Any, list[Event]]:
    """As `capture`, but what was captured is a list of events in the order in which they were finished."""
    if not isinstance(module, nnx.Module) or not _callable(type(module)):
        raise TypeError(f"`module` must be an nnx.Module with a `__call__`, got {type(module).__name__}.")
    if _running.get() is not None:
        raise NotImplementedError(
            f"`capture` of a {type(module).__name__} was called inside another `capture`; the outer one has its values."
        )
    session = _Session(module)

    def call() -> Any:
        _running.set(_Call(session, "", {}))
        # Code compiled before must be traced again: a nested jit that hits its cache would hide the modules it calls.
        with surely(_capturing(True)), listening(session.record), _watched(session.modules):
            return module(*inputs, **kwargs)

    # In a context of its own: what is set there is gone with it, also when the call is interrupted.
    result = contextvars.copy_context().run(call)
    if session.failure is not None:
        raise session.failure
    return result, session.events


@dataclass(frozen=True)
class _Call:
    """The module call that is running, and the shapes that it recorded so far."""

    session: "_Session"
    path: str
    recorded: dict[str, Shape]


_running: ContextVar[_Call | None] = ContextVar("jaxattn_capture", default=None)
_capturing = jax.make_user_context(False)


class _Session:
    """One capture: where it started, which module is where, what was seen."""

    def __init__(self, module: nnx.Module):
        self.trace = get_opaque_trace_state()
        found = {".".join(map(str, path)): part for path, part in nnx.iter_modules(module)}
        self.paths = {id(part): path for path, part in found.items()}
        self.modules = list(found.values())  # Keeps them alive, so that no other object gets one of these identities.
        self.events: list[Event] = []
        self.failure: NotImplementedError | None = None

    def call(self, running: _Call, module: nnx.Module, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run one module call and keep its result."""
        kind = type(module).__name__
        path = self.paths.get(id(module))
        if path is None:
            self._fail(
                f"a {kind} outside the module, it seems a copy of {self._originals(module, running)}, was called"
            )
        if get_opaque_trace_state() != self.trace:
            self._fail(f"{_shown(path)} ({kind}) was called inside a nested jit, remat, scan, vmap or grad")
        call = _Call(self, path, {})
        token = _running.set(call)
        try:
            result = function(*args, **kwargs)
        finally:
            _running.reset(token)
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, nnx.Pytree))
        shapes = tuple(leaf.shape for leaf in leaves if hasattr(leaf, "shape"))
        for name, value in _named(result).items():
            if name not in call.recorded or name == "output":  # The operation's record is the one before dropout.
                self.events.append(Event(path, name, kind, shapes, value, (args, kwargs)))
        return result

    def record(self, name: str, value: Any) -> None:
        """Keep what an operation recorded, under the module that is running."""
        call = _running.get()
        if call is None or call.session is not self:
            return
        if get_opaque_trace_state() != self.trace:
            self._fail(f"{_shown(call.path)} computed its {name} inside a nested jit, remat, scan, vmap or grad")
        shapes = tuple(call.recorded[operand] for operand in OPERANDS.get(name, ()) if operand in call.recorded)
        call.recorded[name] = value.shape
        self.events.append(Event(call.path, name, "operation", shapes, value))

    def _originals(self, module: nnx.Module, running: _Call) -> str:
        """The paths that a module made while the captured one ran may be a copy of."""
        inside = running.path + "." if running.path else ""
        same = [self.paths[id(part)] for part in self.modules if type(part) is type(module)]
        names = list(map(_shown, [path for path in same if path.startswith(inside)] or same))
        return " or ".join(names[:3]) + (f" or {len(names) - 3} others" if len(names) > 3 else "")

    def _fail(self, what: str) -> NoReturn:
        failure = NotImplementedError(
            f"`capture` can't keep everything: {what}. A transformation inside a module keeps its values, and nnx's "
            "own run copies of the modules: do without it while capturing, or put it around `capture`."
        )
        self.failure = self.failure or failure  # Raised at the end too: the module may handle it.
        raise failure


def _shown(path: str) -> str:
    return f"`{path}`" if path else "the captured module itself"


def _named(result: Any) -> dict[str, Any]:
    """A module's result by name."""
    if not (isinstance(result, tuple) and hasattr(result, "_asdict")):
        return {"output": result}
    fields = {name: value for name, value in result._asdict().items() if value is not None}  # pyright: ignore[reportAttributeAccessIssue] -- a NamedTuple
    return fields if "output" in fields else {**fields, "output": result}


def _callable(kind: type) -> bool:
    return any("__call__" in base.__dict__ for base in kind.__mro__)


_switches = Switches()


def _watched(modules: Iterable[nnx.Module]) -> AbstractContextManager[None]:
    """Let calls of these modules' classes pass by the capture of their context; captures in other threads share that.

    A class that inherits its `__call__` gets one of its own meanwhile.
    """
    kinds = {kind for kind in map(type, modules) if _callable(kind)}
    return _switches.held(
        Setting(kind, partial(_own_call, kind), partial(_set_call, kind), partial(_wrapper, kind)) for kind in kinds
    )


def _own_call(kind: type) -> Callable[..., Any] | None:
    return kind.__dict__.get("__call__")


def _set_call(kind: type, function: Callable[..., Any] | None) -> None:
    if function is not None:
        kind.__call__ = function
    elif _own_call(kind) is not None:
        del kind.__call__


def _wrapper(kind: type, own: Callable[..., Any] | None) -> Callable[..., Any]:
    @functools.wraps(kind.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = super(kind, self).__call__ if own is None else partial(own, self)  # pyright: ignore[reportAttributeAccessIssue] -- a class above has it
        running = _running.get()
        if running is None or type(self) is not kind:  # Nobody listens here, or a subclass calls its base's.
            return function(*args, **kwargs)
        return running.session.call(running, self, function, args, kwargs)

    return __call__
