"""`jaxattn bench`: how fast a module is in eager Flax, in jitted Flax and in PyTorch, once the two agree."""

import contextlib
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

from ..conditions import describe, duration, factor
from ..convert.torch_bridge import from_torch
from ..interleaved import TORCH_EAGER, BenchReport, Mode, ratio
from ..timing import ParityFailure, bench_pair
from .options import with_sizes
from .terminal import Terminal, messages, output, print_json, progress, say
from .variants import Variant, variant_named

DType = enum.StrEnum("DType", ["float32", "float64", "bfloat16", "float16"])


@with_sizes
def command(
    variant: Annotated[str, typer.Argument(help="Which module, as `multi_head`; an unknown name lists them all.")],
    batch: Annotated[int, typer.Option(min=1, help="Examples in the batch.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens in the (query) sequence.")] = 128,
    source_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in the key and value sequence; by default as many.")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Of inputs and parameters.")] = DType("float32"),  # noqa: B008
    rounds: Annotated[int, typer.Option(min=1, help="Timed blocks for each candidate.")] = 9,
    block_ms: Annotated[float, typer.Option(min=0, help="Least duration of a timed block.")] = 50,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot there (.png, .svg, .pdf).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a plot that exists.")] = False,
    sizes: Mapping[str, Any] | None = None,
) -> None:
    """Time a module against PyTorch: eager, compilation, jit and torch, interleaved in one run.

    The two sides are compared first; if they differ no time is printed and the exit code is 1.
    """
    chosen = variant_named(variant)
    try:
        complete = chosen.sizes(**sizes or {})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if plot is not None:
        from ..plots.saving import check_destination

        check_destination(plot, force=force)
    with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
        pair = example_pair(chosen, batch, length, source_length or length, dtype, seed, complete)
        report = _measure(pair, rounds, block_ms / 1e3)
    report.conditions.update(variant=variant, sizes=complete)
    if json_:
        print_json(report.to_json())
    else:
        _print(report)
    if plot is not None:
        _plot(report, plot, force)


def example_pair(
    variant: Variant, batch: int, length: int, source_length: int, dtype: str, seed: int, sizes: dict[str, Any]
) -> tuple[Any, Any, tuple[np.ndarray, ...]]:
    """The PyTorch original with every weight random, its Flax twin, and example inputs."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        torch_module = variant.torch(**sizes)
        for parameter in torch_module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # biases of 0 and scales of 1 hide errors
    torch_module.to(getattr(torch, dtype))
    inputs = variant.inputs(np.random.default_rng(seed), batch, length, source_length, **sizes)
    cast = {id(array): array.astype(jax.numpy.dtype(dtype)) for array in inputs}
    return torch_module, from_torch(torch_module), tuple(cast[id(array)] for array in inputs)


def _measure(pair: tuple[Any, Any, tuple[np.ndarray, ...]], rounds: int, min_block_s: float) -> BenchReport:
    try:
        with progress("") as show:
            return bench_pair(*pair, rounds=rounds, min_block_s=min_block_s, progress=show)
    except ParityFailure as failure:
        Terminal(stderr=True).print(failure.report)
        raise


def _print(report: BenchReport) -> None:
    console = output()
    for mode in report.modes:
        console.print(_table(report.module, mode))
    console.print(f"parity ok · {describe(report.conditions)}", style="dim")


def _table(module: str, mode: Mode) -> Table:
    table = Table(title=f"{module}: {mode.name}", title_justify="left")
    table.add_column("what")
    for column in ("median", "quartiles", "n", "× torch eager (range)"):
        table.add_column(column, justify="right", no_wrap=True)
    torch_timing = mode.timings[TORCH_EAGER]
    for name, timing in mode.timings.items():
        speed = ratio(torch_timing, timing)
        times = f"{factor(speed.median)} ({factor(speed.low)}–{factor(speed.high)})"
        quartiles = "–".join(map(duration, timing.spread))
        cells = duration(timing.median), quartiles, str(timing.n), "1" if timing is torch_timing else times
        table.add_row(name, *cells)
    table.add_row("Flax compilation", duration(mode.compile_s), "", "1", "")
    return table


def _plot(report: BenchReport, path: Path, force: bool) -> None:
    from ..plots.speed import plot_speed

    groups = {mode.name: mode.to_json()["timings"] for mode in report.modes}
    title = f"{report.module} with random weights: Flax against PyTorch"
    plot_speed(groups, path, title=title, conditions=report.conditions, force=force)
    say(messages(), f"Wrote {path}")
