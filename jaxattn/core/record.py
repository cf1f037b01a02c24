"""What an attention call was made of, kept while somebody listens; nothing is computed or stored otherwise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every `record` of the body to `listener`, and to no other one."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
