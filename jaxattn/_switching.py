"""Things that are global in the process, switched while somebody needs them, by any threads, interrupted anywhere."""

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One global thing.

    Attributes:
        name: what it is; those of one name are one thing.
        read: its value.
        write: gives it another one.
        switched: the value that it had → the one it has while somebody needs it.
    """

    name: Hashable
    read: Callable[[], Any]
    write: Callable[[Any], None]
    switched: Callable[[Any], Any]


@dataclass(frozen=True)
class _Switched:
    setting: Setting
    before: Any
    value: Any


class Switches:
    """The first one in switches, the last one out restores, whatever happened between.

    A KeyboardInterrupt may come between any two steps, also while the body is being left. So each step can be made
    again, and every user holds a token: what was not undone when it left is undone when the token is freed.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._users: dict[Hashable, set[int]] = {}
        self._switched: dict[Hashable, _Switched] = {}

    @contextmanager
    def held(self, settings: Iterable[Setting]) -> Iterator[None]:
        """Within, these things are switched."""
        number, token = next(self._numbers), _Token()
        ending = weakref.finalize(token, self._leave, number)
        try:
            for setting in settings:
                self._enter(setting, number)
            yield
        finally:
            try:
                self._leave(number)
            finally:
                self._leave(number)
            ending.detach()

    def _enter(self, setting: Setting, number: int) -> None:
        name = setting.name
        with self._lock:
            self._users.setdefault(name, set()).add(number)
            known, now = self._switched.get(name), setting.read()
            if known is None or now is not known.value:
                # What to restore is kept before anything is written.
                self._switched[name] = known = _Switched(setting, now, setting.switched(now))
                setting.write(known.value)

    def _leave(self, number: int) -> None:
        with self._lock:
            for name, users in list(self._users.items()):
                users.discard(number)
                if users:
                    continue
                switched = self._switched.get(name)
                # Somebody else may have given it a value of theirs meanwhile, which stays.
                if switched is not None and switched.setting.read() is switched.value:
                    switched.setting.write(switched.before)
                self._switched.pop(name, None)
                self._users.pop(name, None)


class _Token:
    """Lives as long as the frame that holds it."""


@contextmanager
def surely(context: AbstractContextManager[Any]) -> Iterator[None]:
    """A context that puts back what it found, left twice: once may be interrupted. Leaving it must only set a value."""
    with context, Left(context):
        yield


class Left:
    """Leaves a context that something else enters."""

    def __init__(self, context: AbstractContextManager[Any]):
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(None, None, None)
