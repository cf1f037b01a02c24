"""`jaxattn parity`: the weights of a file in PyTorch and in Flax, and whether the two compute and learn the same."""

import dataclasses
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from flax import nnx

from ..convert.files import read_checkpoint
from ..parity.report import ParityReport
from .loading import Wanted, load, wide_enough
from .options import (
    AsJson,
    Config,
    FamilyName,
    File,
    Force,
    Key,
    Module,
    Prefix,
    Rename,
    parse_renames,
    with_sizes,
)
from .original import Example, example_of, source_of, torch_original
from .terminal import messages, output, print_json, progress, say
from .verdicts import narrow_table, trace_sentence, training_sentence, verdict_line, without_maps

PAGE = Path("parity.html")
#: Columns that the whole table needs.
WIDE = 120
#: What a page of this command has, and other files have not.
MARK = '<p class="eyebrow">PyTorch against Flax</p>'
Optimizer = enum.StrEnum("Optimizer", ["sgd", "adam", "adamw"])
#: torch.optim's class and its arguments.
OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 1e-2, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 1e-3}),
    "adamw": ("AdamW", {"lr": 1e-3}),
}


@with_sizes
def command(
    file: File,
    module: Module = None,
    family: FamilyName = None,
    config: Config = None,
    key: Key = None,
    prefix: Prefix = "",
    rename: Rename = None,
    against: Annotated[
        Path | None,
        typer.Option(help="The file that PyTorch gets; by default the original, if FILE was converted and names it."),
    ] = None,
    against_key: Annotated[str | None, typer.Option(help="Where the state dict lies in that one, if nested.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples in the batch.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens in the (query) sequence.")] = 16,
    source_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in the key and value sequence; by default as many.")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps to train; 0 trains none.")] = 5,
    optimizer: Annotated[Optimizer, typer.Option(help="Of these steps.")] = Optimizer("adamw"),  # noqa: B008
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    html: Annotated[
        Path | None, typer.Option(help=f"Where the page goes; by default {PAGE}, with --json nowhere.")
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no page.")] = False,
    force: Force = False,
    as_json: AsJson = False,
    sizes: Mapping[str, Any] | None = None,
) -> None:
    """Load a checkpoint into the PyTorch original and into Flax, compare them, and write a page to look at.

    Outputs, attention weights and gradients are compared in float64 and in the weights' own dtype, then layer by layer
    (where they part first, and why), then over a few optimizer steps, all on random inputs. The exit code is 1 if
    anything differs by more than rounding explains. The page replaces an earlier one, another file only with --force.
    Takes what `jaxattn convert` wrote, too, and then needs no options: PyTorch gets the original that the file names.
    """
    page = _destination(html, no_html, as_json, force)
    wanted = Wanted(module, family, config, sizes or {}, prefix, parse_renames(rename))
    tell = (lambda _: None) if as_json else _printer()
    with progress("Loading"):
        checkpoint = read_checkpoint(file, key=key)
    with wide_enough(checkpoint):
        with progress("Loading"):
            loaded = load(checkpoint, wanted)
            example = example_of(loaded, seed, max(steps, 1), batch, length, source_length or length)
            source = source_of(loaded, checkpoint, against, against_key, wanted)
            torch_module = torch_original(source.loaded, source.checkpoint)
        both, notes = (torch_module, loaded.module), [*loaded.untold_lines, *([source.note] if source.note else [])]
        report = _examine(*both, example, seed, steps, optimizer, tell, notes)
    if as_json:
        print_json({**without_maps(report).to_json(), "assumed": dict(loaded.assumed)})
    if page is not None:
        with progress("Drawing"):
            report.save_html(page)
        say(messages(), f"Wrote {page}")
    if not report.ok:
        raise typer.Exit(1)


def _examine(
    torch_module: Any,
    flax_module: nnx.Module,
    example: Example,
    seed: int,
    steps: int,
    optimizer: str,
    tell: Callable[[Any], None],
    notes: Sequence[str] = (),
) -> ParityReport:
    """Compare, trace and train; each result is said as soon as it is there."""
    from ..parity import compare, trace, train

    both, inputs = (torch_module, flax_module), example.batches[0]
    with progress("Comparing outputs and gradients"):
        report = compare(*both, *inputs, seed=seed, **example.options)
    report = dataclasses.replace(report, notes=(*report.notes, *notes))
    tell(report)
    with progress("Comparing layer by layer"):
        traced = trace(*both, *inputs, seed=seed, **example.options)
    report = dataclasses.replace(report, trace=traced)
    tell(verdict_line("Layer by layer", trace_sentence(traced), ok=traced.ok))
    if not steps:
        return report
    if next(torch_module.parameters(), None) is None:
        tell(verdict_line("Training", "there are no parameters", ok=True))
        return report
    with progress(f"Training {steps} steps"):
        make = optimizer_named(optimizer)
        trained = train(*both, make, example.batches, steps, seed=seed, **example.options)
    tell(verdict_line("Training", training_sentence(trained), ok=trained.ok))
    return dataclasses.replace(report, training=trained)


def optimizer_named(name: str) -> Callable[[Any], Any]:
    """Makes torch's optimizer of the parameters that it is given."""
    import torch

    kind, arguments = OPTIMIZERS[name]
    return lambda parameters: getattr(torch.optim, kind)(parameters, **arguments)


def _destination(html: Path | None, no_html: bool, as_json: bool, force: bool) -> Path | None:
    """Where the page goes, if anywhere.

    Raises:
        typer.BadParameter: a page and none are asked for.
        FileNotFoundError: its directory does not exist.
        FileExistsError: something else than an earlier page is there.
    """
    if html is not None and no_html:
        raise typer.BadParameter("--html and --no-html contradict each other: give one.")
    if no_html or (html is None and as_json):
        return None
    page = html or PAGE
    if not page.parent.is_dir():
        raise FileNotFoundError(f"The directory `{page.parent}` does not exist: create it first.")
    if page.is_dir():
        raise FileExistsError(f"`{page}` is a directory: give --html the name of a file in it.")
    if os.path.lexists(page) and not force and not _is_page(page):
        raise FileExistsError(
            f"`{page}` exists and is no page of this command: pass --force to replace it, or --html for another name."
        )
    return page


def _is_page(path: Path) -> bool:
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _printer() -> Callable[[Any], None]:
    console = output()

    def tell(what: Any) -> None:
        narrow = isinstance(what, ParityReport) and console.width < WIDE
        console.print(narrow_table(what) if narrow else what)
        for note in what.notes if narrow else ():
            console.print(f"note: {note}")

    return tell
