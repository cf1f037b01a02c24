"""What an attention call was made of, kept while somebody listens; nothing is computed or stored otherwise."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

Listener = Callable[[str, Any], None]
_listener: ContextVar[Listener | None] = ContextVar("jaxattn_listener", default=None)

#: Which recorded values another one is made of, where the same call recorded them.
OPERANDS: dict[str, tuple[str, ...]] = {"logits": ("q", "k"), "weights": ("logits",)}


def recording() -> bool:
    return _listener.get() is not None


def record(name: str, value: Any) -> None:
    """Hand `value` to the listener under `name` ("q", "logits", "weights", …); no listener, no effect."""
    listener = _listener.get()
    if listener is not None:
        listener(name, value)


class listening:
    """Send every `record` of the body to `listener`, and to no other one.

    A class, because a generator that an interrupt leaves behind would be closed in a context which isn't its own.
    """

    def __init__(self, listener: Listener):
        self._listener = listener

    def __enter__(self) -> None:
        self._token = _listener.set(self._listener)

    def __exit__(self, *error: Any) -> None:
        _listener.reset(self._token)
