"""What a user sees when something is wrong: one message on standard error and the exit code, no traceback."""

import functools
import re
from collections.abc import Callable
from typing import Any

import typer
from rich.text import Text

from .._checks import ConversionError
from .._text import visible
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
            sentence = re.sub(r"\n(?!  )", r"\\n", str(error))  # an indented line is one of ours, of a list
            messages().print(Text.assemble(("error:", "bold red"), f" {type(error).__name__}: {visible(sentence)}"))
            raise typer.Exit(1) from error

    return run
