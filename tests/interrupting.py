"""KeyboardInterrupt raised at every step of a call, one step a run."""

import sys
from collections.abc import Callable, Iterator
from typing import Any


def interrupted_everywhere(function: Callable[[], Any], files: tuple[str, ...], *, by: int = 1) -> Iterator[int]:
    """Runs `function` again and again; in run k the k-th bytecode of these files is where Ctrl-C comes.

    Gives k after each interrupted run, when nothing holds its frames any more, and ends when a run is too short to be
    interrupted.

    Args:
        function: what is run.
        files: names of source files in which the interrupt may come, as they end.
        by: only each `by`-th bytecode.
    """
    step = 1
    while _interrupted(function, files, step):
        yield step
        step += by


def _interrupted(function: Callable[[], Any], files: tuple[str, ...], step: int) -> bool:
    count = 0

    def local(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == step:
                raise KeyboardInterrupt
        return local

    def entered(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return count >= step  # swallowed by a callback, which prints it
