"""The command line as a process: its errors, its encoding, and how it ends when it is told to."""

import codecs
import contextlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from .._text import command_line, one_line

#: Typer has it from Click, or as its own, by version; its subclass is public.
UsageError: Any = typer.BadParameter.__mro__[1]


class Group(TyperGroup):
    """The commands, run with everything in this file."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        with command_line(), any_encoding(), tidy_at_termination():
            return super().main(*arguments, **options)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _usage_errors_escaped():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors_escaped():
            return super().invoke(ctx)


@contextmanager
def _usage_errors_escaped() -> Iterator[None]:
    """They quote what was typed, and Typer prints them."""
    try:
        yield
    except UsageError as error:
        error.message = "\n".join(map(one_line, error.message.split("\n")))
        raise


#: What stands for our own signs where the encoding lacks them; all other characters are escaped.
_INSTEAD = {"×": "x", "–": "-", "−": "-", "…": "...", "→": "->", "↔": "<->", "·": "*", "÷": "/", "√": "sqrt", "ᵀ": "^T"}
_INSTEAD |= {"≤": "<=", "≥": ">=", "≠": "!=", "✗": "x", "ε": "epsilon"}


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_INSTEAD.get(c) or c.encode("unicode_escape").decode("ascii") for c in lacking), error.end


codecs.register_error("jaxattn.replace", _replacement)


@contextmanager
def any_encoding() -> Iterator[None]:
    """Inside, what the encoding of standard output or error lacks is replaced, not an error."""
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            changed.append((stream, stream.errors))
            stream.reconfigure(errors="jaxattn.replace")
    try:
        yield
    finally:
        for stream, errors in changed:
            with contextlib.suppress(ValueError):  # closed by now
                stream.reconfigure(errors=errors)


@contextmanager
def tidy_at_termination() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end the program as Ctrl-C does, tidying up, with the shell's exit code for them."""

    def end(number: int, frame: Any) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
