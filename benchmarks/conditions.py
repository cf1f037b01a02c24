"""What every suite shares: its options, its rounds, and how results are written."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxattn._writing import whole_file
from jaxattn.conditions import BUSY, conditions, duration, factor, warning
from jaxattn.interleaved import FLAX_JIT, BenchReport
from jaxattn.plots.speed import plot_speed

RESULTS = Path(__file__).parent / "results"
FULL = {"rounds": 15, "min_block_s": 0.1, "sleep_s": 0.03}
QUICK = {"rounds": 2, "min_block_s": 0.005, "sleep_s": 0.005}


def options(
    suite: str, description: str | None, argv: Sequence[str], **further: Mapping[str, Any]
) -> argparse.Namespace:
    """`quick`, and `out`, the directory of the results: None (nothing is written) for a quick run without --out.

    Args:
        suite: its name.
        description: for --help.
        argv: the command line.
        **further: options of this suite, name → what argparse's `add_argument` takes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {suite}", description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds; writes only with --out")
    parser.add_argument("--out", type=Path, help="directory of the results (default: benchmarks/results)")
    for name, how in further.items():
        parser.add_argument(f"--{name}", **how)
    given = parser.parse_args(list(argv))
    if given.out is None and not given.quick:
        given.out = RESULTS
    return given


def announce(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def compact(report: BenchReport) -> dict[str, Any]:
    """A report without what the suite states once: parity as its verdict and largest errors of outputs."""
    rows = report.to_json()
    outputs = [row for row in rows["parity"]["rows"] if row["kind"] == "output"]
    names = {"float64_error": "error_float64", "error": "error", "torch_error": "torch_error"}
    errors = {ours: max(row[theirs] for row in outputs) for ours, theirs in names.items()}
    kept = {name: rows["conditions"][name] for name in ("shapes", "dtype", "rounds", "cores_busy_elsewhere")}
    return {
        "module": report.module,
        "parity": {"ok": rows["parity"]["ok"], "dtype": rows["parity"]["dtype"], **errors},
        "conditions": kept,
        "modes": rows["modes"],
    }


def print_report(label: str, result: Mapping[str, Any]) -> None:
    """One block of plain lines, after the parity verdict."""
    parity = result["parity"]
    print(f"{label}: parity ok, {parity['dtype']} error {parity['error']:.1e} (torch {parity['torch_error']:.1e})")
    for mode in result["modes"]:
        print(f"  {mode['name']} (compilation {duration(mode['compile_s'])})")
        for name, timing in mode["timings"].items():
            speedup = mode["jit_speedup_over"].get(name)
            print_timing(name, timing, "" if name == FLAX_JIT else f"   jit is {factor(speedup['median'])} as fast")


def print_timing(name: str, timing: Mapping[str, Any], remark: str = "") -> None:
    """One plain line: median, quartiles, number of rounds."""
    spread = f"{duration(timing['q1_s'])}–{duration(timing['q3_s'])}"
    print(f"    {name:28} {duration(timing['median_s']):>9}  {spread:>20}  n={timing['n']}{remark}")


def write(
    suite: str,
    results: Sequence[Mapping[str, Any]],
    given: argparse.Namespace,
    further: Mapping[str, Any],
    **facts: Any,
) -> None:
    """SUITE.json and SUITE.png in the directory of the results: the first mode of each result is drawn.

    Args:
        suite: its name.
        results: of `compact`, with their labels.
        given: the options.
        further: what else the JSON holds.
        **facts: for the conditions.
    """
    stated = state(results, given, **facts)
    if save(suite, {"conditions": stated, **further, "results": list(results)}, given):
        groups = {result["label"]: result["modes"][0]["timings"] for result in results}
        title = f"{stated['title']}, output only"
        plot_speed(groups, given.out / f"{suite}.png", title=title, conditions=stated, force=True)


def state(results: Sequence[Mapping[str, Any]], given: argparse.Namespace, **facts: Any) -> dict[str, Any]:
    """The conditions of a whole suite, after a warning if other processes disturbed one of its results."""
    busy = [result["conditions"]["cores_busy_elsewhere"] for result in results]
    rounds = results[0]["conditions"]["rounds"]
    known = [value for value in busy if value is not None]
    stated = conditions(**facts, quick=given.quick, rounds=rounds, cores_busy_elsewhere=max(known) if known else None)
    if warning(stated):
        announce(f"{warning(stated)} (limit {BUSY}): measure again on a quiet machine.")
    return stated


def save(suite: str, data: Mapping[str, Any], given: argparse.Namespace) -> bool:
    """Whether SUITE.json was written: a quick run without --out writes nothing."""
    if given.out is None:
        return False
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"suite": suite, **data}, indent=1, ensure_ascii=False)
    with whole_file(given.out / f"{suite}.json", force=True) as partial_path:
        partial_path.write_text(text + "\n", encoding="utf-8")
    announce(f"Wrote {given.out / suite}.json")
    return True
