"""`jaxattn demo`: the whole way once, on modules with random weights: convert, prove, time, draw."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..conditions import BusyElsewhere, conditions, describe, duration, factor
from ..convert.files import read_checkpoint, save_checkpoint
from ..convert.tensors import to_torch
from ..interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, BenchReport, Mode, interleave
from .convert import write_converted
from .loading import Wanted, load
from .options import output
from .variants import VARIANTS

#: Name on the command line → examples in the batch and tokens; shapes in common are compiled once.
EXAMPLES = {"my_attn": (1, 1), "multi_head": (4, 32), "multi_head_cross": (4, 32), "encoder": (4, 32)}
ROUNDS = 3
TORCH_FILE, REPORT, SPEED, HEATMAP = "torch_modules.safetensors", "report.json", "speed.png", "attention.png"
FLAX_FILES = {name: f"{name}.flax.safetensors" for name in EXAMPLES}
FILES = {TORCH_FILE, REPORT, SPEED, HEATMAP, *FLAX_FILES.values()}
SENTENCE = "He ate an apple".split()


def command(
    out: Annotated[Path, typer.Option(help="The directory to write; it must not exist.")] = Path("jaxattn-demo"),
    force: Annotated[bool, typer.Option("--force", help="Replace the directory of an earlier demo.")] = False,
) -> None:
    """Convert four PyTorch modules with random weights, prove that Flax computes the same, time both, draw the results.

    Needs PyTorch, no network and less than a minute.
    """
    check_destination(out, force)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        with staged(out, force) as directory:
            reports = _convert_and_measure(directory, bar)
            _write_report(reports, directory / REPORT)
            task = bar.add_task("drawing", total=None)
            _draw_speed(reports, directory / SPEED)
            _draw_attention(directory / FLAX_FILES["encoder"], directory / HEATMAP)
            bar.remove_task(task)
    _print(reports, out)


def _convert_and_measure(directory: Path, bar: Progress) -> dict[str, BenchReport]:
    """Save PyTorch modules as one checkpoint, read and convert each, compare and time it."""
    from ..timing import ParityFailure

    task = bar.add_task("making PyTorch modules", total=len(EXAMPLES))
    twins = _torch_modules()
    weights = {f"{name}.{key}": tensor for name, twin in twins.items() for key, tensor in twin.state_dict().items()}
    save_checkpoint(weights, directory / TORCH_FILE)
    checkpoint, reports = read_checkpoint(directory / TORCH_FILE), {}
    rng = np.random.default_rng(0)
    for done, (name, (batch, length)) in enumerate(EXAMPLES.items()):
        bar.update(task, completed=done, description=f"{name}: converting, comparing, timing")
        sizes = VARIANTS[name].sizes()
        loaded = load(checkpoint, Wanted(module=name, sizes=sizes, prefix=name))
        write_converted(loaded, checkpoint, directory / FLAX_FILES[name])
        try:
            reports[name] = _measure(
                twins[name], loaded.module, VARIANTS[name].inputs(rng, batch, length, length, **sizes)
            )
        except ParityFailure as failure:
            bar.stop()
            bar.console.print(failure.report)
            raise
    bar.remove_task(task)
    return reports


def _measure(twin: Any, module: nnx.Module, inputs: tuple[np.ndarray, ...]) -> BenchReport:
    """Compare the two, then time calls that return everything: one mode of `bench_pair`, with fewer rounds.

    Raises:
        ParityFailure: they differ.
    """
    import torch

    from ..parity import compare
    from ..timing import ParityFailure

    name = type(twin).__name__
    parity = compare(twin, module, *inputs)
    if not parity.ok:
        raise ParityFailure(name, parity)
    call: Any = module
    arrays, tensors = [jnp.asarray(array) for array in inputs], [to_torch(array) for array in inputs]
    jitted = jax.jit(lambda module, arrays: jax.tree.leaves(module(*arrays)))
    elsewhere, start = BusyElsewhere(), time.perf_counter()
    jax.block_until_ready(jitted(module, arrays))
    compile_s = time.perf_counter() - start
    candidates: dict[str, Callable[[], Any]] = {
        FLAX_EAGER: lambda: call(*arrays),
        FLAX_JIT: lambda: jitted(module, arrays),
        TORCH_EAGER: lambda: twin(*tensors),
    }
    with torch.inference_mode():
        timings = interleave(candidates, rounds=ROUNDS, min_block_s=0.01)
    shapes, busy = [list(array.shape) for array in inputs], elsewhere.cores()
    facts = conditions(shapes=shapes, dtype=parity.dtype, rounds=ROUNDS, cores_busy_elsewhere=busy)
    return BenchReport(name, (Mode("all results", compile_s, timings),), parity, facts)


def _torch_modules() -> dict[str, Any]:
    """Every weight random: biases of 0 and scales of 1 would hide errors."""
    rng, twins = np.random.default_rng(0), {}
    for name in EXAMPLES:
        twins[name] = VARIANTS[name].torch()
        for parameter in twins[name].parameters():
            scale = 0.3 if parameter.ndim < 2 else 1.5 / np.sqrt(parameter.shape[-1])
            drawn = scale * rng.standard_normal(tuple(parameter.shape))
            parameter.data = to_torch(drawn.astype(np.float32))
    return twins


def _write_report(reports: dict[str, BenchReport], path: Path) -> None:
    content = {name: report.to_json() for name, report in reports.items()}
    path.write_text(json.dumps(content, indent=2) + "\n")


def _draw_speed(reports: dict[str, BenchReport], path: Path) -> None:
    from ..plots.speed import plot_speed

    groups = {report.module: report.modes[0].to_json()["timings"] for report in reports.values()}
    title = "Flax against PyTorch: calls with all their results"
    plot_speed(groups, path, title=title, conditions=_shared_conditions(reports))


def _shared_conditions(reports: dict[str, BenchReport]) -> dict[str, Any]:
    """Of all measurements together."""
    found = [report.conditions for report in reports.values()]
    shapes = {
        report.module: ", ".join("×".join(map(str, shape)) for shape in report.conditions["shapes"])
        for report in reports.values()
    }
    inputs = "; ".join(f"{module} {text}" for module, text in shapes.items())
    busy = [conditions["cores_busy_elsewhere"] or 0.0 for conditions in found]
    return {**found[0], "inputs": inputs, "cores_busy_elsewhere": max(busy)}


def _draw_attention(path: Path, picture: Path) -> None:
    """The first layer's weights of the converted encoder, on random words."""
    from ..capture import capture
    from ..plots.heatmap import attention_heatmap

    encoder = load(read_checkpoint(path), Wanted()).module
    (words,) = VARIANTS["encoder"].inputs(np.random.default_rng(1), None, len(SENTENCE), 0)
    weights = jax.jit(lambda module, x: capture(module, x)[1]["layers.0.self_attn:weights"])(encoder, words)
    attention_heatmap(
        weights,
        query_labels=SENTENCE,
        key_labels=SENTENCE,
        title="TransformerEncoder with random weights: layer 0",
        path=picture,
    )


def _print(reports: dict[str, BenchReport], out: Path) -> None:
    console = output()
    table = Table(title="PyTorch → Flax", title_justify="left")
    table.add_column("module")
    for column in ("max error, float64", "float32: Flax", "torch", "Flax jit", "torch eager ÷ jit", "Flax eager ÷ jit"):
        table.add_column(column, justify="right")
    for report in reports.values():
        rows = [row for row in report.parity.rows if row.kind == "output"]
        errors = (max(getattr(row, name) for row in rows) for name in ("error_float64", "error", "torch_error"))
        mode = report.modes[0]
        factors = mode.speedups()
        times = duration(mode.timings[FLAX_JIT].median), *(factor(factors[n].median) for n in (TORCH_EAGER, FLAX_EAGER))
        table.add_row(report.module, *(f"{error:.1e}" for error in errors), *times)
    console.print(table)
    count = sum(row.shape[0] for report in reports.values() for row in report.parity.rows if row.kind == "weights")
    compared = sum(len(report.parity.rows) - 1 for report in reports.values())
    console.print(
        f"Proved: all {count} tensors came over bit for bit and go back bit for bit; {compared} outputs, attention "
        "weights and gradients equal PyTorch's in float64, and in float32 up to the rounding that PyTorch has itself."
    )
    console.print(f"Times: {describe(_shared_conditions(reports))}", style="dim")
    for name in sorted(FILES):
        console.print(f"  {out / name}")


def check_destination(out: Path, force: bool) -> None:
    """Raise unless the directory may be written: a new one, or with `force` one that holds a demo and nothing else."""
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"The directory `{out.parent}` does not exist: create it first.")
    if not os.path.lexists(out):
        return
    if not force:
        raise FileExistsError(f"`{out}` exists: pass --force to replace it, or --out for another one.")
    if out.is_symlink() or not out.is_dir() or not {entry.name for entry in out.iterdir()} <= FILES:
        raise FileExistsError(f"`{out}` holds more than a demo, so --force does not replace it: give another --out.")


@contextmanager
def staged(out: Path, force: bool) -> Iterator[Path]:
    """A directory beside `out` that takes its place at the end, or disappears when something is raised."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as beside:
        directory = Path(beside) / "new"
        directory.mkdir()
        yield directory
        check_destination(out, force)
        if out.exists():
            os.rename(out, Path(beside) / "old")
        os.rename(directory, out)
