"""A report as one file of HTML."""

import os

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..._writing import whole_file
from ..report import ParityReport
from . import facts, words
from .charts import training_charts
from .maps import DIFFERENCES, WEIGHTS, colour_bar, map_views
from .scale import short
from .tables import layer_table, row_table


def write_page(report: ParityReport, path: str | os.PathLike[str]) -> None:
    """Write the page whole; an older one is replaced.

    Raises:
        FileExistsError: `path` is a directory.
        FileNotFoundError: its directory does not exist.
    """
    with whole_file(path, force=True) as partial_path:
        partial_path.write_text(render(report), encoding="utf-8")


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
