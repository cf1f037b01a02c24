"""What a user sees when something is wrong: one message on standard error and the exit code, no traceback."""

import functools
from collections.abc import Callable
from typing import Any

import typer
from rich.text import Text

from .._checks import ConversionError
from .terminal import messages

#: What files, options and missing packages can cause. A TypeError isn't among them: options have types.
EXPECTED = (ConversionError, ValueError, NotImplementedError, OSError, ImportError)


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Exit code 1 and the error's own sentence for what a user can cause; anything else is a defect and shows."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except BrokenPipeError:  # the reader of our output has gone away, as `head` does: not worth a word
            raise
        except EXPECTED as error:
            messages().print(Text.assemble(("error:", "bold red"), f" {type(error).__name__}: {error}"))
            raise typer.Exit(1) from error

    return run
