"""The console script `jaxattn`: one file a command."""

import typer

from . import bench, conformance, convert, demo, explain, inspect, parity
from .errors import reporting

app = typer.Typer(
    name="jaxattn",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bring a PyTorch attention model to JAX/Flax, with proof that it computes the same, and run it under jit.",
)

for module in (demo, convert, inspect, parity, bench, explain, conformance):
    app.command(module.__name__.rpartition(".")[2])(reporting(module.command))
