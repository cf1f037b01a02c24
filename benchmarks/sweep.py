"""Block sizes of the blockwise implementation, forward and forward + backward, over the grid of `op`.

Nothing depends on the result by itself: `jaxattn/core/tuning.py` holds the rules that were read off it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp

from jaxattn.conditions import BusyElsewhere, conditions, duration, warning
from jaxattn.core.blockwise import blockwise_attention
from jaxattn.core.mask_base import as_mask
from jaxattn.core.problem import Problem
from jaxattn.core.schedule import Schedule
from jaxattn.core.tuning import schedules
from jaxattn.interleaved import interleave

from .conditions import announce, options
from .grid import GRID, TINY, Point
from .systems import causal_mask

FULL = {"rounds": 3, "min_block_s": 0.02, "sleep_s": 0.01}
QUICK = {"rounds": 1, "min_block_s": 0.001, "sleep_s": 0.0}
#: (heads, queries, keys, unrolled) beside the tuned one; clipped to the shape.
CANDIDATES = [
    (heads, queries, 2048, unrolled)
    for heads, queries, unrolled in ((1, 128, 8), (1, 256, 8), (1, 512, 1), (1, 1024, 1), (8, 256, 8))
]


def main(argv: list[str]) -> int:
    """Print and write the times of all candidates at all points."""
    only = {"metavar": "TEXT", "help": "only points whose label contains this; nothing is written"}
    given = options("sweep", __doc__, argv, only=only)
    points = [p for p in (TINY if given.quick else GRID) if p.length > 1 and (given.only or "") in p.label]
    elsewhere = BusyElsewhere()
    results = [
        sweep(point, backward=backward, how=QUICK if given.quick else FULL)
        for backward in (False, True)
        for point in points
    ]
    stated = conditions(
        inputs="contiguous (B, T, N, H) arrays", dtype="float32", cores_busy_elsewhere=elsewhere.cores()
    )
    announce(warning(stated) or "")
    if given.out is not None and not given.only:
        given.out.mkdir(parents=True, exist_ok=True)
        data = {"suite": "sweep", "conditions": stated, "results": results}
        (given.out / "sweep.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def sweep(point: Point, *, backward: bool, how: dict[str, Any]) -> dict[str, Any]:
    """Median and quickest time of each schedule at one point, the tuned one first."""
    announce(f"{point.label}{' + backward' if backward else ''} …")
    arrays = [jnp.asarray(array) for array in point.arrays()]
    q, k, v = arrays[:3]
    problem = Problem(q, k, v, point.width**-0.5, mask=as_mask(causal_mask(point)))
    tuned = schedules(problem)[backward]
    chosen = {text(schedule): schedule for schedule in (tuned, *candidates(point))}
    calls = {name: call(point, arrays, schedule, backward=backward) for name, schedule in chosen.items()}
    timings = interleave(calls, **how)
    for name, timing in timings.items():
        mark = "  ← tuned" if name == text(tuned) else ""
        print(f"  {name:32} {duration(timing.median):>9}  least {duration(min(timing.seconds)):>9}{mark}")
    times = {name: {"median_s": timing.median, "least_s": min(timing.seconds)} for name, timing in timings.items()}
    facts = {"label": point.label, "backward": backward, "tuned": asdict(tuned)}
    return {**facts, "schedules": {name: asdict(schedule) for name, schedule in chosen.items()}, "times": times}


def candidates(point: Point) -> Sequence[Schedule]:
    """As far as they differ at this point; `queries` are of one head, so grouped heads get fewer."""
    group = point.heads // point.kv_heads
    clipped = [
        Schedule(heads, min(max(queries // group, 64), point.length), min(keys, point.kv_length), unrolled)
        for heads, queries, keys, unrolled in CANDIDATES
    ]
    return list(dict.fromkeys(clipped))


def call(point: Point, arrays: Sequence[Any], schedule: Schedule, *, backward: bool) -> Callable[[], Any]:
    """Compiled; the backward pass comes with the tuned forward pass."""
    mask, scale = as_mask(causal_mask(point)), point.width**-0.5

    def attend(q: Any, k: Any, v: Any) -> Any:
        problem = Problem(q, k, v, scale, mask=mask)
        sizes = (schedules(problem)[0], schedule) if backward else (schedule, schedule)
        return blockwise_attention(problem, sizes).output

    def both(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        output, pull = jax.vjp(attend, q, k, v)
        return output, pull(cotangent)

    given = arrays if backward else arrays[:3]
    compiled = jax.jit(both if backward else attend).lower(*given).compile()
    return lambda: compiled(*given)


def text(schedule: Schedule) -> str:
    loop = "unrolled" if schedule.unrolled > 1 else "looped"
    return f"{schedule.heads} heads, {schedule.queries} × {schedule.keys}, {loop}"
