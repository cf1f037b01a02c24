"""The console script `jaxattn`: one file a command."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated

import typer

from .._version import __version__
from . import bench, conformance, convert, demo, explain, inspect, parity
from .errors import reporting
from .process import Group

app = typer.Typer(
    name="jaxattn",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bring a PyTorch attention model to JAX/Flax, with proof that it computes the same, and run it under jit.",
)


def _flowing(command: Callable[..., None]) -> str:
    """Its docstring with each paragraph in one line: terminals break lines elsewhere than the source does."""
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for module in (demo, convert, inspect, parity, bench, explain, conformance):
    app.command(module.__name__.rpartition(".")[2], help=_flowing(module.command))(reporting(module.command))


def _show_version(asked: bool) -> bool:
    if asked:
        print(f"jaxattn {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
