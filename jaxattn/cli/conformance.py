"""`jaxattn conformance`: what attention means in JAX's libraries, as a matrix of checks."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..conditions import conditions
from ..conformance import CHECKS, TARGETS, Result, run
from .options import AsJson
from .terminal import output, print_json, progress
from .variants import did_you_mean

ALL = "all"
STYLES = {"pass": "green", "differs": "bold red", "refused": "yellow", "not offered": "dim"}


def command(
    target: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(TARGETS)}; repeatable. By default {ALL} that are installed.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Ask libraries what their attention does: masks, empty rows, alignment, heads, dtypes, dropout, gradients.

    Each check is a tiny call whose result is known by hand; what another library answers is shown, not blamed. The
    exit code is 1 only if jaxattn itself differs from its own semantics. Your own attention is checked from Python:
    `jaxattn.conformance.run(target)`, where the target has a `name` and a method `attend(request)`.
    """
    results, left_out = _run_all(target or [ALL])
    if json_:
        rows = [result.to_json() for results_of_one in results.values() for result in results_of_one]
        print_json({"results": rows, "left_out": left_out, "conditions": conditions()})
    else:
        _print(results, left_out)
    if not all(result.ok for result in results.get("jaxattn", [])):
        raise typer.Exit(1)


def _run_all(names: Sequence[str]) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """Results by target, and why a target was left out; that is an error for one that was named."""
    if unknown := [name for name in names if name not in (*TARGETS, ALL)]:
        raise typer.BadParameter(
            f"unknown target {unknown[0]!r}{did_you_mean(unknown[0], TARGETS)}; known are {', '.join(TARGETS)}, {ALL}."
        )
    results: dict[str, list[Result]] = {}
    left_out: dict[str, str] = {}
    for name in TARGETS if ALL in names else dict.fromkeys(names):
        try:
            with progress(f"checking {name}"):
                results[name] = run(name)
        except ImportError as error:
            if name in names:
                raise typer.BadParameter(str(error)) from error
            left_out[name] = str(error)
    return results, left_out


def _print(results: Mapping[str, Sequence[Result]], left_out: Mapping[str, str]) -> None:
    console = output()
    console.print(_table(results))
    for result in (result for column in results.values() for result in column if result.verdict == "refused"):
        console.print(Text(f"{result.target} refused {result.check}: {result.came}", style=STYLES["refused"]))
    for reason in left_out.values():
        console.print(Text(f"left out: {reason}", style="dim"))
    versions = ", ".join(f"{name} {version}" for name, version in conditions()["versions"].items())
    console.print(versions, style="dim")


def _table(results: Mapping[str, Sequence[Result]]) -> Table:
    table = Table(title="What attention does, and what it is expected to do", title_justify="left")
    table.add_column("check")
    table.add_column("expected")
    for name in results:
        table.add_column(name)
    for number, check in enumerate(CHECKS):
        cells = [_cell(column[number]) for column in results.values()]
        table.add_row(Text(check.question), Text(check.expected), *cells)
    return table


def _cell(result: Result) -> Text:
    said = {"differs": f"✗ {result.came}", "pass": f"pass ({result.came})" if result.came else "pass"}
    return Text(said.get(result.verdict, result.verdict), style=STYLES[result.verdict])
