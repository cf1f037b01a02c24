"""Everything that a command says: results, messages, what it is doing. What others wrote commands no terminal."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from .._text import one_line, visible

#: Seconds between two lines that say what is being done, where standard error is no terminal.
INTERVAL = 10.0
#: Columns where standard output is no terminal.
WIDE = 160


class Terminal(Console):
    """A console on which strings are text, never markup or emoji, and which no text can command."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def output() -> Terminal:
    """Standard output; lines are as long as they need to be where it is no terminal."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=max(console.width, WIDE))


def messages() -> Terminal:
    """Standard error, a line for each message."""
    return Terminal(stderr=True, soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """For a cell: as wide as what will be shown."""
    return Text(visible(text), style)


def say(console: Console, sentence: str, style: str = "") -> None:
    """One line, whatever is quoted in it."""
    console.print(Text(one_line(sentence), style), soft_wrap=True)


def print_json(value: Any) -> None:
    """ASCII, without anything that a terminal obeys."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


#: (what, done=None, total=None): says what is being done, and how much of it is.
Show = Callable[..., None]


@contextmanager
def progress(what: str) -> Iterator[Show]:
    """What is being done, on standard error: a bar that disappears, or where that is no terminal a line now and then.

    Args:
        what: what is being done first.

    Yields:
        A function that says what comes next.
    """
    console = messages()
    with _bar(Terminal(stderr=True), what) if console.is_terminal else _lines(console, what) as show:
        yield show


@contextmanager
def _bar(console: Console, what: str) -> Iterator[Show]:
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(visible(what), total=None)

        def show(what: str, done: int | None = None, total: int | None = None) -> None:
            bar.update(task, description=visible(what), completed=done or 0, total=total)

        yield show


@contextmanager
def _lines(console: Console, what: str) -> Iterator[Show]:
    now, stop, start = [what], threading.Event(), time.monotonic()

    def show(what: str, done: int | None = None, total: int | None = None) -> None:
        now[0] = what if done is None or total is None else f"{what}, {done} of {total}"

    def tell() -> None:
        while not stop.wait(INTERVAL):
            console.print(f"{now[0]} … {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        stop.set()
        thread.join()
