"""The tables of README.md, generated from the results between `<!-- table:NAME -->` and `<!-- /table -->`."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

from .conditions import RESULTS, announce
from .render import (
    Data,
    render_encoder,
    render_memory,
    render_minilm,
    render_modules,
    render_operation,
    render_overhead,
)
from .render_conformance import render_conformance

README = Path(__file__).parent.parent / "README.md"


def main(argv: list[str]) -> int:
    """0, or 1 if README lacks a marker or, with --check, is stale, or the results are missing or of a quick run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the tables are stale")
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    try:
        before = given.readme.read_text(encoding="utf-8")
        after = rewrite(before, given.results)
    except (OSError, ValueError) as error:
        announce(f"error: {error}")
        return 1
    if before == after:
        announce(f"{given.readme} is up to date.")
        return 0
    if given.check:
        announce(f"{given.readme} is stale: run `python -m benchmarks table`.")
        return 1
    given.readme.write_text(after, encoding="utf-8")
    announce(f"Rewrote the tables of {given.readme}.")
    return 0


def rewrite(text: str, results: Path) -> str:
    """The text with every table made anew; a suite with neither results nor a marker has no table.

    Raises:
        OSError: a results file can't be read.
        ValueError: a marker is missing or doubled, or results come from a quick run.
    """
    for name, (file, render) in TABLES.items():
        pattern = re.compile(rf"(<!-- table:{name} -->\n).*?(<!-- /table -->)", re.DOTALL)
        found = pattern.findall(text)
        if not found and not (results / file).exists():
            continue
        if len(found) != 1:
            raise ValueError(f"the text must hold `<!-- table:{name} -->` … `<!-- /table -->` once, got {len(found)}.")
        data = json.loads((results / file).read_text(encoding="utf-8"))
        if data["conditions"]["quick"]:
            raise ValueError(f"{results / file} is from a quick run: run the suite without --quick.")
        table = render(data)
        text = pattern.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text


TABLES: dict[str, tuple[str, Callable[[Data], str]]] = {
    "modules": ("module.json", render_modules),
    "minilm": ("minilm.json", render_minilm),
    "encoder": ("encoder.json", render_encoder),
    "op": ("op.json", render_operation),
    "op_grad": ("op_grad.json", render_operation),
    "memory": ("memory.json", render_memory),
    "overhead": ("overhead.json", render_overhead),
    "conformance": ("conformance.json", render_conformance),
}
