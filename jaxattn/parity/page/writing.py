"""A report as one file of HTML."""

import os
import secrets
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..report import ParityReport
from . import facts, words
from .charts import training_charts
from .maps import DIFFERENCES, WEIGHTS, colour_bar, map_views
from .scale import short
from .tables import layer_table, row_table


def write_page(report: ParityReport, path: str | os.PathLike[str]) -> None:
    """Write beside the destination under another name, then rename; an older page is replaced.

    Raises:
        FileExistsError: `path` is a directory.
        FileNotFoundError: its directory does not exist.
    """
    path = Path(path)
    if path.is_dir():
        raise FileExistsError(f"`{path}` is a directory: give the name of a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The directory `{path.parent}` does not exist: create it first.")
    page = render(report)
    partial_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial_path.write_text(page, encoding="utf-8")
        os.replace(partial_path, path)
    finally:
        partial_path.unlink(missing_ok=True)


def render(report: ParityReport) -> str:
    """The page: no script, nothing loaded from anywhere; every text of the report is escaped."""
    environment = Environment(
        loader=PackageLoader("jaxattn.parity.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"path": words.path, "prose": words.prose, "short": short}
    maps, more_maps = map_views(report.trace) if report.trace else ([], 0)
    return environment.get_template("page.html.jinja").render(
        report=report,
        verdict=facts.verdict(report),
        divergence=facts.divergence(report.trace) if report.trace else None,
        layers=layer_table(report.trace) if report.trace and report.trace.layers else None,
        rows=row_table(report) if report.rows else None,
        charts=training_charts(report.training) if report.training else [],
        maps=maps,
        more_maps=more_maps,
        colours={"weights": colour_bar(WEIGHTS), "differences": colour_bar(DIFFERENCES)},
        conditions=facts.conditions(report),
        notes=facts.notes(report),
    )
