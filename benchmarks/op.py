"""The attention operation alone, forward: ours under jit against torch's SDPA, jax.nn and others, over a fixed grid."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxattn.conditions import BusyElsewhere, duration, factor
from jaxattn.interleaved import Timing, interleave, ratio
from jaxattn.timing import ParityFailure

from .conditions import FULL, QUICK, announce, options, print_timing, save, state
from .curves import plot_curves
from .gate import BOUND, check, exact_parts
from .grid import GRID, TINY, Point, series
from .ratios import TARGETS, print_verdicts, speed_verdicts, summary
from .systems import FLAX, FURTHER, JAX_NN, KERAS, OURS, TORCH, Candidate, available, prepare, reason

#: Products of forward and backward together over those of forward: 7 matrix products to 2.
BACKWARD_FACTOR = 3.5


def main(argv: list[str]) -> int:
    """0, or 1 if ours differs from float64 (nothing is written then) or a full run misses a target."""
    return run("op", __doc__, argv, backward=False)


def run(suite: str, description: str | None, argv: Sequence[str], *, backward: bool) -> int:
    """Gate, time and judge every point of the grid."""
    wanted = f"peers besides torch and jax.nn, of {', '.join(FURTHER)} (default: flax.nnx keras, quick none)"
    peers = {"nargs": "*", "metavar": "NAME", "choices": FURTHER, "help": wanted}
    only = {"metavar": "TEXT", "help": "only points whose label contains this; nothing is written"}
    rounds = {"type": int, "metavar": "N", "help": "timed rounds of each point (default 15, quick 2)"}
    given = options(suite, description, argv, peers=peers, only=only, rounds=rounds)
    how = {**(QUICK if given.quick else FULL), **({"rounds": given.rounds} if given.rounds else {})}
    points = [point for point in (TINY if given.quick else GRID) if (given.only or "") in point.label]
    if not points:
        announce(f"error: no point's label contains {given.only!r}")
        return 2
    further = given.peers if given.peers is not None else [] if given.quick else [FLAX, KERAS]
    names = [OURS, TORCH, JAX_NN, *available(further, backward=backward)]
    results = []
    for point in points:
        announce(f"{point.label} …")
        try:
            results.append(measure(point, names, backward=backward, how=how))
        except ParityFailure as failure:
            announce(f"{failure} {failure.report}")
            return 1
        print_result(results[-1])
    met = finish(suite, results, points, given)
    return 0 if met or given.quick or given.only else 1


def measure(
    point: Point, names: Sequence[str], *, backward: bool, how: Mapping[str, Any], dtype: Any = np.float32, bound=BOUND
) -> dict[str, Any]:
    """Times of all systems that agree with float64, from the same rounds; the first is ours.

    Raises:
        ParityFailure: ours does not agree.
    """
    arrays = [array.astype(dtype) for array in point.arrays()]
    exact = exact_parts(point, arrays, backward=backward)
    candidates: dict[str, Candidate] = {}
    errors, left_out = {}, {}
    for name in names:
        try:
            candidate = prepare(name, point, arrays, backward=backward)
            errors[name] = check(name, candidate.results(), exact, bound=bound)
            candidates[name] = candidate
        except Exception as failure:  # a peer that differs or fails here is left out of this point
            if name == names[0]:
                raise
            left_out[name] = reason(failure)
            announce(f"{name} is left out: {left_out[name]}")
    elsewhere = BusyElsewhere()
    timings = interleave({name: candidate.call for name, candidate in candidates.items()}, **how)
    stated = {"rounds": timings[names[0]].n, "cores_busy_elsewhere": elsewhere.cores()}
    return {
        "label": point.label,
        "point": point.to_json(),
        "operations": point.products * (BACKWARD_FACTOR if backward else 1),
        "parity": {"bound": bound, "errors": errors, "left_out": left_out},
        "compile_s": {name: c.compile_s for name, c in candidates.items() if c.compile_s is not None},
        **timed(timings, names[0]),
        "conditions": stated,
    }


def timed(timings: Mapping[str, Timing], ours: str) -> dict[str, Any]:
    """The times, and how many times as fast as each peer ours is."""
    over = {name: vars(ratio(timing, timings[ours])) for name, timing in timings.items() if name != ours}
    return {"timings": {name: timing.to_json() for name, timing in timings.items()}, "ratio_over": over}


def print_result(result: Mapping[str, Any]) -> None:
    """A block of plain lines: time, spread, speed, ratio and compile time of each system."""
    worst = max(result["parity"]["errors"][OURS].values())
    print(f"{result['label']}: parity ok, error {worst:.1e}")
    for name, timing in result["timings"].items():
        remark = f"  {speed(result, name):6.1f} GFLOP/s"
        if name in result["ratio_over"]:
            over = result["ratio_over"][name]
            remark += f"  ours is {factor(over['median'])} ({factor(over['low'])}–{factor(over['high'])}) as fast"
        if name in result["compile_s"]:
            remark += f"  compilation {duration(result['compile_s'][name])}"
        print_timing(name, timing, remark)


def speed(result: Mapping[str, Any], name: str) -> float:
    """GFLOP/s, with the blocked half counted."""
    return result["operations"] / result["timings"][name]["median_s"] / 1e9


def finish(suite: str, results: Sequence[dict[str, Any]], points: Sequence[Point], given: argparse.Namespace) -> bool:
    """Print the summary, write JSON and picture unless only some points were wanted; whether all targets are met."""
    peers = list(dict.fromkeys(name for result in results for name in result["ratio_over"]))
    summaries = {peer: summary(results, peer) for peer in peers}
    for peer, over in summaries.items():
        mean, least = over["geometric_mean"], over["least"]
        where = f"{over['least_at']}, {over['points']} of {over['of']} points"
        print(f"ours over {peer}: geometric mean {mean:.3g}×, least {least:.3g}× ({where})")
    verdicts = speed_verdicts(results, TARGETS[suite], OURS)
    met = print_verdicts(verdicts)
    facts = {"title": TITLES[suite], "inputs": "contiguous (B, T, N, H) arrays", "dtype": "float32"}
    stated = state(results, given, **facts)
    targets = [verdict.to_json() for verdict in verdicts]
    data = {"conditions": stated, "summary": summaries, "targets": targets, "results": list(results)}
    if not given.only and save(suite, data, given):
        panels, shape = curves(results, points)
        title = f"{TITLES[suite]}, {shape}"
        axis = "GFLOP/s, logarithmic; more is faster"
        plot_curves(panels, given.out / f"{suite}.png", title=title, axis=axis, conditions=stated)
    return met


def curves(results: Sequence[Mapping[str, Any]], points: Sequence[Point]) -> tuple[dict[str, Any], str]:
    """Panel → system → (T, GFLOP/s) along the grid's series of lengths, and the words for the rest of the shape."""
    chosen = {point.label: point for point in series(points)}
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {"full": {}, "causal": {}}
    for result in results:
        if result["label"] in chosen:
            point = chosen[result["label"]]
            for name in result["timings"]:
                lines = panels["causal" if point.causal else "full"]
                lines.setdefault(name, []).append((point.length, speed(result, name)))
    first = points[0]
    return panels, f"B{first.batch} N{first.heads} H{first.width}"


TITLES = {"op": "Attention, forward", "op_grad": "Attention, forward and backward"}
