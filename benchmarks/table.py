"""The tables of README.md, generated from the results between `<!-- table:NAME -->` and `<!-- /table -->`."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxattn.conditions import describe, duration, factor
from jaxattn.interleaved import FLAX_EAGER, FLAX_JIT, TORCH_EAGER

from .conditions import RESULTS, announce
from .minilm import PLAIN

README = Path(__file__).parent.parent / "README.md"
Data = Mapping[str, Any]


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
    """The text with every table made anew.

    Raises:
        OSError: a results file can't be read.
        ValueError: a marker is missing or doubled, or results come from a quick run.
    """
    for name, (file, render) in TABLES.items():
        pattern = re.compile(rf"(<!-- table:{name} -->\n).*?(<!-- /table -->)", re.DOTALL)
        found = pattern.findall(text)
        if len(found) != 1:
            raise ValueError(f"the text must hold `<!-- table:{name} -->` … `<!-- /table -->` once, got {len(found)}.")
        data = json.loads((results / file).read_text(encoding="utf-8"))
        if data["conditions"]["quick"]:
            raise ValueError(f"{results / file} is from a quick run: run the suite without --quick.")
        table = render(data)
        text = pattern.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text


def render_modules(data: Data) -> str:
    """One row a module; times of the output alone."""
    header = ["module", "PyTorch counterpart", "float32 error (torch's own)", f"jit over {FLAX_EAGER}"]
    rows = [
        [
            f"`{result['module']}`",
            f"`{result['counterpart']}`",
            _errors(result),
            _speedup(result, FLAX_EAGER),
            _speedup(result, TORCH_EAGER),
        ]
        for result in data["results"]
    ]
    caption = (
        "Error: largest difference of outputs (weights included) from a float64 run. jit over …: how many times faster "
        "the jitted module gives its output (lowest–highest round). torchref's SinusoidalPositionalEncoding computes "
        "its table in every call."
    )
    return _markdown([*header, f"jit over {TORCH_EAGER}"], rows, caption, data)


def render_minilm(data: Data) -> str:
    """One row a shape: times of all candidates."""
    names = [FLAX_EAGER, FLAX_JIT, TORCH_EAGER, PLAIN]
    header = ["batch × length", "float32 error (torch's own)", *names, f"jit over {FLAX_EAGER}"]
    rows = []
    for result in data["results"]:
        timings = result["modes"][0]["timings"]
        times = [duration(timings[name]["median_s"]) for name in names]
        shape = f"{result['batch']} × {result['length']}"
        speedups = _speedup(result, FLAX_EAGER), _speedup(result, TORCH_EAGER)
        rows.append([shape, _errors(result), *times, *speedups])
    caption = (
        "Medians. torch eager is transformers' BertModel with its default attention (sdpa); plain attention is "
        'attn_implementation="eager". Without the pooler on all sides.'
    )
    return _markdown([*header, f"jit over {TORCH_EAGER}"], rows, caption, data)


def _errors(result: Data) -> str:
    parity = result["parity"]
    return f"{parity['error']:.1e} ({parity['torch_error']:.1e})"


def _speedup(result: Data, name: str) -> str:
    speedup = result["modes"][0]["jit_speedup_over"][name]
    return f"{factor(speedup['median'])} ({factor(speedup['low'])}–{factor(speedup['high'])})"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, data: Data) -> str:
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{table}\n\n{caption} Measured on: {describe(data['conditions'])}.\n"


TABLES: dict[str, tuple[str, Callable[[Data], str]]] = {
    "modules": ("module.json", render_modules),
    "minilm": ("minilm.json", render_minilm),
}
