"""Sizes of blocks by shape, for XLA on a CPU. `python -m benchmarks sweep` measures what the numbers here come from."""

from .index_functions import Span
from .problem import Problem
from .schedule import Schedule

#: Logits that are computed at once over several heads, where rows are short: beyond, one head at a time.
LOGITS, SHORT = 2**20, 256
#: The same where a mask leaves out keys: rows are shorter there than they look.
LOGITS_SKIPPED, SHORT_SKIPPED = 2**19, 512
#: Blocks of queries that are unrolled where a mask leaves out keys: more make compiling slower than 2 s. Elsewhere a
#: loop is as fast, and its blocks share memory.
UNROLLED_FORWARD, UNROLLED_BACKWARD = 8, 4
#: Keys of one block: whole rows up to here; in a loop over what a mask leaves, less, or much of a block is blocked.
KEYS, KEYS_IN_LOOPS = 2048, 512


def schedules(problem: Problem) -> tuple[Schedule, Schedule]:
    """(forward, backward)"""
    group = problem.num_heads // problem.kv_heads
    skips = _skips(problem)
    if skips:  # smaller blocks leave out more
        forward = max(_split(problem.length_q, UNROLLED_FORWARD, 512) // group, 128)
        backward = _split(problem.length_q, UNROLLED_BACKWARD, 512)
    else:
        forward = max(1024 // group, 128)
        backward = max((512 if problem.length_q >= 2048 else 256) // group, 128)
    return (
        _schedule(problem, forward, UNROLLED_FORWARD if skips else 1, SHORT_SKIPPED if skips else SHORT),
        _schedule(problem, backward, UNROLLED_BACKWARD if skips else 1, SHORT),
    )


def _skips(problem: Problem) -> bool:
    """Whether the mask is known at trace time to leave out keys of the first query."""
    mask, length_kv = problem.mask, problem.length_kv
    return mask is not None and mask.is_static and mask.key_range(Span(0, 1), length_kv) != (0, length_kv)


def _split(length: int, blocks: int, most: int) -> int:
    """Queries of a block when there are so many of them, in multiples of 64."""
    return min(max(-(-length // blocks // 64) * 64, 128), most)


def _schedule(problem: Problem, queries: int, unrolled: int, short: int) -> Schedule:
    queries = min(queries, problem.length_q)
    steady = problem.mask is None or problem.mask.is_static
    looped = problem.mask is not None and (not steady or problem.length_q > unrolled * queries)
    keys = min(KEYS_IN_LOOPS if looped else KEYS, problem.length_kv)
    heads = 1
    if steady and keys <= short:
        rows = problem.num_heads // problem.kv_heads * queries
        heads = max(1, (LOGITS if keys <= SHORT else LOGITS_SKIPPED) // (rows * keys))
    return Schedule(heads, queries, keys, unrolled)
