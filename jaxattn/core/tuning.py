"""Sizes of blocks by shape, for XLA on a CPU. `python -m benchmarks sweep` measures what the numbers here come from."""

from .problem import Problem
from .schedule import Schedule

#: Logits that are computed at once over several heads, where rows are as short as SHORT: beyond, one head at a time.
LOGITS = 2**19
SHORT_FORWARD, SHORT_BACKWARD = 512, 256
#: Blocks of queries that are unrolled: more make the products faster and compiling slower than 2 s.
UNROLLED_FORWARD, UNROLLED_BACKWARD = 8, 4
#: Keys of one block: whole rows up to here; in a loop over what a mask leaves, less, or much of a block is blocked.
KEYS, KEYS_IN_LOOPS = 2048, 512


def schedules(problem: Problem) -> tuple[Schedule, Schedule]:
    """(forward, backward)"""
    group = problem.num_heads // problem.kv_heads
    if problem.mask is not None and problem.mask.is_static:  # smaller blocks leave out more
        forward = max(_split(problem.length_q, UNROLLED_FORWARD, 512) // group, 128)
        backward = _split(problem.length_q, UNROLLED_BACKWARD, 512)
    else:
        forward = max(1024 // group, 128)
        backward = max((512 if problem.length_q >= 2048 else 256) // group, 128)
    return (
        _schedule(problem, forward, SHORT_FORWARD, UNROLLED_FORWARD),
        _schedule(problem, backward, SHORT_BACKWARD, UNROLLED_BACKWARD),
    )


def _split(length: int, blocks: int, most: int) -> int:
    """Queries of a block when there are so many of them, in multiples of 64."""
    return min(max(-(-length // blocks // 64) * 64, 128), most)


def _schedule(problem: Problem, queries: int, short: int, unrolled: int) -> Schedule:
    queries = min(queries, problem.length_q)
    steady = problem.mask is None or problem.mask.is_static
    looped = problem.mask is not None and (not steady or problem.length_q > unrolled * queries)
    keys = min(KEYS_IN_LOOPS if looped else KEYS, problem.length_kv)
    rows = problem.num_heads // problem.kv_heads * queries
    together = problem.length_kv <= short and steady
    return Schedule(max(1, LOGITS // (rows * keys)) if together else 1, queries, keys, unrolled)
