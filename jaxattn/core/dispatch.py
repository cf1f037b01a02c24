"""Which implementation computes a call: one table, a pure function of backend, static shapes, dtypes and options."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from .blockwise import blockwise_attention
from .cudnn import cudnn_attention, cudnn_refusal
from .decode import decode_attention
from .dense import dense_attention
from .facts import Facts, device_of, facts_of
from .meshes import automatic, division
from .problem import Problem, Result
from .splash import splash_attention, splash_refusal

#: On a CPU the dense implementation takes at most so many logits, ∏ B · N · T · S.
DENSE_ELEMENTS = 2**14
#: On other devices their bytes, where no kernel for the device takes the call.
DENSE_BYTES = 2**28
#: On a CPU the decode implementation takes up to so many queries of one key/value head, and of all heads.
FEW_ROWS, FEW_QUERIES = 4, 64

IMPLEMENTATIONS: dict[str, Callable[[Problem], Result]] = {
    "dense": dense_attention,
    "blockwise": blockwise_attention,
    "decode": decode_attention,
    "cudnn": cudnn_attention,
    "splash": lambda problem: splash_attention(problem, splash_kernels()),
}

#: Kernels for one device, taken wherever they can compute the call, and why they cannot.
KERNELS: dict[str, Callable[[Facts], str | None]] = {"cudnn": cudnn_refusal, "splash": splash_refusal}


_SYMBOLIC = "blocks need lengths that are known when the call is traced, got symbolic ones"


def decide(facts: Facts) -> tuple[str, dict[str, str]]:
    """(the implementation that "auto" takes, why it takes none of the others)."""
    if not facts.known_sizes:
        refused = dict.fromkeys(KERNELS, "its sizes must be known when the call is traced, got symbolic ones")
    else:
        refused = {name: reason for name, refusal in KERNELS.items() if (reason := refusal(facts)) is not None}
    if not facts.known_lengths:
        return "dense", {"blockwise": _SYMBOLIC, "decode": "of symbolic lengths none is known to be small", **refused}
    kernels = [name for name in KERNELS if name not in refused]
    if kernels:
        preferred = f"{kernels[0]} can compute this call, and is made for the {facts.backend.upper()}"
        return kernels[0], {**dict.fromkeys(("dense", "blockwise", "decode"), preferred), **refused}
    if facts.backend == "cpu":
        small, size = facts.logits <= DENSE_ELEMENTS, f"∏ B · N · T · S = {facts.logits} logits"
        limit = f"DENSE_ELEMENTS = {DENSE_ELEMENTS}"
    else:
        small, size = facts.logits_bytes <= DENSE_BYTES, f"{facts.logits_bytes} bytes of logits"
        limit = f"DENSE_BYTES = {DENSE_BYTES}"
    few = _not_few(facts)
    if small:
        less = f"{size} are at most {limit}"
        return "dense", {"blockwise": less, "decode": less, **refused}
    more = f"{size} are more than {limit}"
    if few is None:
        return "decode", {"dense": more, "blockwise": "few queries need no blocks, and no copy of the keys", **refused}
    return "blockwise", {"dense": more, "decode": few, **refused}


def _not_few(facts: Facts) -> str | None:
    """Why the call is not one of a query or a few on a CPU."""
    if facts.backend != "cpu":
        return f"it is made for a CPU, not for the {facts.backend.upper()}"
    rows, queries = facts.length_q * facts.num_heads // facts.kv_heads, facts.length_q * facts.num_heads
    if rows <= FEW_ROWS and queries <= FEW_QUERIES:
        return None
    return f"T · N / K = {rows} and T · N = {queries} must be at most {FEW_ROWS} and {FEW_QUERIES}"


def select(facts: Facts, implementation: str) -> tuple[str, dict[str, str]]:
    """As `decide`; an implementation that is asked for by name is taken.

    Raises:
        NotImplementedError: it cannot compute the call.
    """
    chosen, refused = decide(facts)
    if implementation in ("auto", chosen):
        return chosen, refused
    if implementation in KERNELS or (implementation == "blockwise" and not facts.known_lengths):
        raise NotImplementedError(
            f"`implementation={implementation!r}` cannot compute this call: {refused[implementation]}; change that, or "
            f"use implementation='auto', which takes {chosen!r} here."
        )
    plain = ("dense", "blockwise", "decode", chosen)
    others = {name: f"implementation={implementation!r} is asked for" for name in plain}
    return implementation, {name: reason for name, reason in {**others, **refused}.items() if name != implementation}


def choose(problem: Problem, implementation: str, *, statistics: bool = False) -> str:
    """The name of the implementation for a call, `implementation` itself unless it is "auto".

    Raises:
        NotImplementedError: the one asked for cannot compute the call.
    """
    if implementation in ("dense", "decode"):
        return implementation  # they take every call
    return select(facts_for(problem, device_of(problem.q), statistics=statistics), implementation)[0]


def facts_for(problem: Problem, device: Any, *, statistics: bool = False) -> Facts:
    """The facts of a call on a device; kernels for TPUs are only looked for on one."""
    has_splash = device.platform == "tpu" and splash_kernels() is not None
    return facts_of(problem, device, statistics=statistics, has_splash=has_splash)


def run(name: str, problem: Problem) -> Result:
    """The result of the implementation `name`; without a key or a logit there is nothing to divide into blocks."""
    function = dense_attention if math.prod(problem.logits_shape) == 0 else IMPLEMENTATIONS[name]
    *batch, length_q, heads, _ = division(problem.q)
    statistic = (*batch, heads, length_q)
    return automatic(function, problem, ((*batch, length_q, heads, None), statistic, statistic, (*statistic, None)))


@cache
def splash_kernels() -> Any:
    """JAX's module `splash_attention`, None where it has none."""
    try:
        from jax.experimental.pallas.ops.tpu import splash_attention as kernels
    except ImportError:
        return None
    return kernels
