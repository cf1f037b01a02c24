"""Text on its way to a reader: what others wrote shows as it is and does nothing, and options have their right name."""

import contextlib
import shlex
import unicodedata
from collections.abc import Iterator
from contextvars import ContextVar

#: Unicode's categories of characters that a terminal obeys or that can't be seen: control, format (bidirectional ones
#: among them), halves of a surrogate pair, line and paragraph separators.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)


def visible(text: str) -> str:
    """The text with characters that a terminal would obey written as Python escapes them; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _OBEYED else _escape(char) for char in text
    )


def one_line(text: str) -> str:
    """As `visible`, line breaks escaped too: a name can't pretend to be the next message."""
    return visible(text).replace("\n", r"\n")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


@contextlib.contextmanager
def command_line() -> Iterator[None]:
    """Inside, messages name options as the command line does."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def argument(name: str, value: object = None) -> str:
    """How a reader gives an option: prefix='model' in Python, --prefix model on the command line; without a value
    its name alone, prefix= or --prefix; where it is on or off, both.
    """
    option = f"--{name.replace('_', '-')}"
    if not _on_command_line.get():
        both = f" ({option} on the command line)" if value is True else ""
        return f"{name}=" if value is None else f"{name}={value!r}{both}"
    return option if value is None or value is True else f"{option} {shlex.quote(str(value))}"
