"""Timing functions against each other in one process, rounds A B A B …, and what comes of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

FLAX_EAGER, FLAX_JIT, TORCH_EAGER = "Flax eager", "Flax jit", "torch eager"
#: The jitted module with next to no Python per call.
COMPILED = "jaxattn.compile"
#: (what is running, steps done, steps in all)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one figure a round; the spread is the interquartile range.

    Attributes:
        seconds: mean over the timed block of each round.
        calls: timed calls in all rounds together.
    """

    seconds: tuple[float, ...]
    calls: int

    @property
    def n(self) -> int:
        return len(self.seconds)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the rounds."""
        low, high = np.quantile(self.seconds, [0.25, 0.75])
        return float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        low, high = self.spread
        values = {"median_s": self.median, "q1_s": low, "q3_s": high, "n": self.n}
        return {**values, "calls": self.calls, "seconds": list(self.seconds)}


@dataclass(frozen=True)
class Ratio:
    """How many times faster: the ratio of the medians, and the lowest and highest ratio within one round."""

    median: float
    low: float
    high: float


def ratio(slower: Timing, faster: Timing) -> Ratio:
    """slower / faster. Both must come from the same rounds."""
    rounds = [a / b for a, b in zip(slower.seconds, faster.seconds, strict=True)]
    return Ratio(slower.median / faster.median, min(rounds), max(rounds))


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 9,
    min_block_s: float = 0.05,
    sleep_s: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
    progress: Progress | None = None,
) -> dict[str, Timing]:
    """Time the candidates in turn, A B A B …, after one round that is thrown away.

    Before each timed block come a sleep, in which the threads of the previous candidate stop spinning, and an untimed
    call. A block repeats the call until it has lasted long enough; each call of it waits for JAX's results.

    Args:
        candidates: functions without arguments, by name.
        rounds: number of timed blocks for each candidate.
        min_block_s: the least duration of a block, in seconds.
        sleep_s: the sleep before a block, in seconds.
        clock: seconds, from any origin.
        sleep: sleeps that many seconds.
        progress: told about each block before it runs.

    Raises:
        ValueError: no round, or no candidate.
    """
    if rounds < 1 or not candidates:
        raise ValueError(f"`rounds` and the number of candidates must be at least 1, got {rounds}, {len(candidates)}.")
    blocks: dict[str, list[tuple[float, int]]] = {name: [] for name in candidates}
    steps = [(name, call) for _ in range(rounds + 1) for name, call in candidates.items()]
    for step, (name, call) in enumerate(steps):
        if progress:
            progress(name, step, len(steps))
        sleep(sleep_s)
        blocks[name].append(_timed_block(call, min_block_s, clock))
    kept = {name: measured[1:] for name, measured in blocks.items()}
    return {
        name: Timing(tuple(elapsed / calls for elapsed, calls in measured), sum(calls for _, calls in measured))
        for name, measured in kept.items()
    }


def _timed_block(call: Callable[[], Any], min_block_s: float, clock: Callable[[], float]) -> tuple[float, int]:
    pending = [leaf for leaf in jax.tree.leaves(call()) if hasattr(leaf, "block_until_ready")]
    jax.block_until_ready(pending)
    calls, elapsed, start = 0, 0.0, clock()
    while not calls or elapsed < min_block_s:
        result = call()
        if pending:  # torch on the CPU has finished when it returns, and pays nothing for our waiting
            jax.block_until_ready(result)
        calls += 1
        elapsed = clock() - start
    return elapsed, calls


def compile_time(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds to trace, lower and compile a fresh jit of the function for these arguments, without running it."""
    fresh = jax.jit(lambda *given: function(*given))  # the function itself may be traced already
    start = time.perf_counter()
    fresh.lower(*arguments).compile()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Mode:
    """The times of one choice of results, "output" or "output and weights", the same on both sides."""

    name: str
    compile_s: float
    timings: dict[str, Timing]

    def speedups(self) -> dict[str, Ratio]:
        """How many times faster the jitted module is than each other candidate."""
        jit = self.timings[FLAX_JIT]
        return {name: ratio(timing, jit) for name, timing in self.timings.items() if name != FLAX_JIT}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "compile_s": self.compile_s,
            "timings": {name: timing.to_json() for name, timing in self.timings.items()},
            "jit_speedup_over": {name: vars(value) for name, value in self.speedups().items()},
        }


@dataclass(frozen=True)
class BenchReport:
    """Times of one module on both sides, its parity report, and the conditions of both."""

    module: str
    modes: tuple[Mode, ...]
    parity: Any
    conditions: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        parity = self.parity.to_json()
        modes = [mode.to_json() for mode in self.modes]
        return {"module": self.module, "modes": modes, "parity": parity, "conditions": self.conditions}
