"""`jaxattn demo`: the whole way once, on modules with random weights: convert, prove, time, draw."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from flax import nnx
from rich import box
from rich.table import Table
from rich.text import Text

from .._tensors import to_torch
from ..conditions import BusyElsewhere, conditions, describe, duration, factor, withheld
from ..convert.files import read_checkpoint, save_checkpoint
from ..interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER, BenchReport, Mode, interleave
from ..parity.report import ParityReport
from ..parity.trace_report import TraceReport
from .convert import write_converted
from .loading import Wanted, load
from .parity import optimizer_named
from .pictures import draw_attention, draw_speed
from .staging import check_destination, staged
from .terminal import Show, Terminal, output, progress
from .variants import VARIANTS
from .verdicts import trace_sentence, training_sentence, verdict_line, without_maps

#: Name on the command line → examples in the batch and tokens; shapes in common are compiled once.
EXAMPLES = {"my_attn": (4, 1), "multi_head": (4, 32), "multi_head_cross": (4, 32), "encoder": (4, 32)}
#: The one that is also compared layer by layer and trained, and that the page and the attention map show.
SHOWN = "encoder"
ROUNDS, STEPS = 3, 5
TORCH_FILE, REPORT, PAGE = "torch_modules.safetensors", "report.json", "parity.html"
SPEED, HEATMAP = "speed.png", "attention.png"
FLAX_FILES = {name: f"{name}.flax.safetensors" for name in EXAMPLES}
FILES = {TORCH_FILE, REPORT, PAGE, SPEED, HEATMAP, *FLAX_FILES.values()}


@dataclass(frozen=True)
class Example:
    """One module on both sides, what it was called with, and what came of it."""

    torch_module: Any
    module: nnx.Module
    inputs: tuple[np.ndarray, ...]
    report: BenchReport


def command(
    out: Annotated[Path, typer.Option(help="The directory to write; an earlier demo there is replaced.")] = Path(
        "jaxattn-demo"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier demo of which files are missing.")] = False,
) -> None:
    """Convert four PyTorch modules with random weights, prove that Flax computes the same, time both, draw the results.

    The encoder is also compared layer by layer and trained on both sides, and has a page to look at. Needs PyTorch, no
    network and less than a minute.
    """
    check_destination(out, force, FILES)
    with _failures_shown(), progress("making PyTorch modules") as show, staged(out, force, FILES) as directory:
        examples = _convert_and_measure(directory, show)
        parity, mistake = _look_inside(examples[SHOWN], show)
        reports = {name: example.report for name, example in examples.items()}
        _write_report(reports, parity, directory / REPORT)
        show("drawing")
        parity.save_html(directory / PAGE)
        draw_speed(reports.values(), _shared_conditions(reports), directory / SPEED)
        draw_attention(directory / FLAX_FILES[SHOWN], directory / HEATMAP)
    _print(reports, parity, mistake, out)


@contextmanager
def _failures_shown() -> Iterator[None]:
    """The report of modules that differ is printed before the error is."""
    from ..timing import ParityFailure

    try:
        yield
    except ParityFailure as failure:
        Terminal(stderr=True).print(failure.report)
        raise


def _convert_and_measure(directory: Path, show: Show) -> dict[str, Example]:
    """Save PyTorch modules as one checkpoint, read and convert each, compare and time it."""
    twins = _torch_modules()
    weights = {f"{name}.{key}": tensor for name, twin in twins.items() for key, tensor in twin.state_dict().items()}
    save_checkpoint(weights, directory / TORCH_FILE)
    checkpoint, examples = read_checkpoint(directory / TORCH_FILE), {}
    rng = np.random.default_rng(0)
    for done, (name, (batch, length)) in enumerate(EXAMPLES.items()):
        show(f"{name}: converting, comparing, timing", done, len(EXAMPLES))
        sizes = VARIANTS[name].sizes()
        wanted = Wanted(module=name, sizes=sizes, prefix=name)
        loaded = load(checkpoint, wanted)
        write_converted(loaded, checkpoint, directory / FLAX_FILES[name], wanted)
        both = twins[name], loaded.module, VARIANTS[name].inputs(rng, batch, length, length, **sizes)
        examples[name] = Example(*both, _measure(*both))
    return examples


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


def _look_inside(example: Example, show: Show) -> tuple[ParityReport, TraceReport]:
    """Layer by layer, a few steps of training, and what is said of a twin with a matrix that lies the other way.

    Raises:
        ParityFailure: they differ.
    """
    from ..parity import trace, train
    from ..timing import ParityFailure

    both = example.torch_module, example.module
    show(f"{SHOWN}: comparing layer by layer", 0, 2)
    traced = trace(*both, *example.inputs)
    show(f"{SHOWN}: training", 1, 2)
    trained = train(*both, optimizer_named("adamw"), [example.inputs], STEPS)
    parity = dataclasses.replace(example.report.parity, trace=traced, training=trained)
    if not parity.ok:
        raise ParityFailure(type(example.torch_module).__name__, parity)
    wrong: Any = nnx.clone(example.module)
    kernel = wrong.layers[-1].self_attn.out_proj.kernel
    kernel[...] = kernel[...].T
    mistake = trace(example.torch_module, wrong, *example.inputs)
    return parity, mistake


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


def _write_report(reports: dict[str, BenchReport], parity: ParityReport, path: Path) -> None:
    content = {name: report.to_json() for name, report in reports.items()}
    content[SHOWN]["parity"] = without_maps(parity).to_json()
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


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


def _print(reports: dict[str, BenchReport], parity: ParityReport, mistake: TraceReport, out: Path) -> None:
    console = output()
    shared = _shared_conditions(reports)
    if (reason := withheld(shared)) is not None:
        console.print(Text(reason, style="bold yellow"))
    console.print(_table(reports, timed=reason is None))
    count = sum(row.shape[0] for report in reports.values() for row in report.parity.rows if row.kind == "weights")
    compared = sum(len(report.parity.rows) - 1 for report in reports.values())
    console.print(
        f"Proved: all {count} tensors came over bit for bit and go back bit for bit; {compared} outputs, attention "
        "weights and gradients equal PyTorch's in float64, and in float32 up to the rounding that PyTorch has itself."
    )
    for line in _inside_lines(parity, mistake):
        console.print(line)
    console.print(f"Times: {describe(shared)}", style="dim")
    for name in sorted(FILES):
        note = ": the encoder's layers, attention maps and training, to look at in a browser" if name == PAGE else ""
        console.print(Text(f"  {out / name}{note}"), soft_wrap=True)


def _table(reports: dict[str, BenchReport], *, timed: bool) -> Table:
    """Errors, and how fast each was, if that is worth reading."""
    table = Table(title="PyTorch → Flax", title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("\nmodule", overflow="fold")
    for column in ("float64\nerror", "float32\nFlax", "error\ntorch", "Flax\njit", "torch ÷\njit", "eager ÷\njit"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports.values():
        rows = [row for row in report.parity.rows if row.kind == "output"]
        errors = (max(getattr(row, name) for row in rows) for name in ("error_float64", "error", "torch_error"))
        mode = report.modes[0]
        factors = mode.speedups()
        times = duration(mode.timings[FLAX_JIT].median), *(factor(factors[n].median) for n in (TORCH_EAGER, FLAX_EAGER))
        table.add_row(report.module, *(f"{error:.1e}" for error in errors), *(times if timed else "–" * len(times)))
    return table


def _inside_lines(parity: ParityReport, mistake: TraceReport) -> list[Text]:
    name, lines = parity.torch_module, []
    if parity.trace is not None:
        sentence = trace_sentence(parity.trace)
        lines.append(verdict_line(f"{name}, layer by layer", sentence, ok=parity.trace.ok))
    if parity.training is not None:
        lines.append(verdict_line(f"{name}, trained", training_sentence(parity.training), ok=parity.training.ok))
    title = "What a mistake looks like, a matrix transposed on purpose: "
    return [*lines, Text.assemble((title, "bold"), trace_sentence(mistake))]
