"""On an accelerator: every implementation of our attention proved against float64, then timed against jax.nn.

Without an accelerator it says so and does nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn
from jaxattn.conditions import conditions
from jaxattn.parity.criterion import gradient_scale, output_scale, rounding_verdict
from jaxattn.timing import ParityFailure

from .conditions import announce, options, save
from .gate import NAMES, exact_part
from .grid import Point
from .op import measure, print_result
from .systems import CUDNN, DENSE, JAX_NN, OURS, reason

#: "dense" comes first: it is judged by jax.nn's error, the others by the dense path's.
IMPLEMENTATIONS = ("dense", "auto", "blockwise", "cudnn", "splash")
BATCH, HEADS, LENGTH, WIDTH, WINDOW = 2, 8, 256, 64, 63
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)
#: Timed shapes, bfloat16, and how far a part of their results may be from float64.
TIMED = [
    Point(4, 16, 16, 4096, 4096, 64),
    Point(4, 16, 16, 4096, 4096, 64, causal=True),
    Point(4, 16, 16, 1024, 1024, 64, causal=True),
]
BOUND = 2e-2
HOW = {"rounds": 5, "min_block_s": 0.02, "sleep_s": 0.005}


@dataclass(frozen=True)
class Case:
    """A mask in our words and as an array [B or 1, T, S], and the number of kv heads."""

    name: str
    mask: Callable[[], Any]
    array: np.ndarray | None
    kv_heads: int = HEADS


def main(argv: list[str]) -> int:
    """0, or 1 if an implementation differs; no time is given then."""
    given = options("device", __doc__, argv)
    if not accelerator():
        announce("No accelerator is at hand: JAX sees only the CPU, so there is nothing to measure.")
        return 0
    proofs = list(prove_all(DTYPES[:1] if given.quick else DTYPES))
    for row in proofs:
        print(f"{row['dtype']:9} {row['case']:8} {row['implementation']:10} {row['verdict']}")
    if not all(row["ok"] for row in proofs):
        announce("An implementation differs, so no time is given.")
        return 1
    results = []
    for point in TIMED[-1:] if given.quick else TIMED:
        for backward in (False, True):
            announce(f"{point.label}, {'forward and backward' if backward else 'forward'} …")
            names = (OURS, DENSE, JAX_NN, CUDNN)
            try:
                result = measure(point, names, backward=backward, how=HOW, dtype=jnp.bfloat16, bound=BOUND)
            except ParityFailure as failure:
                announce(f"{failure} {failure.report}")
                return 1
            results.append({**result, "backward": backward})
            print_result(results[-1])
    stated = conditions(title="Attention on an accelerator", dtype="bfloat16", quick=given.quick, rounds=HOW["rounds"])
    save("device", {"conditions": stated, "proofs": proofs, "results": results}, given)
    return 0


def accelerator() -> bool:
    return jax.devices()[0].platform != "cpu"


def cases() -> list[Case]:
    """Full, causal, window, padding, window with padding, grouped; every query has something to attend to."""
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    lengths = np.array([LENGTH, LENGTH // 2 + 3], np.int32)
    longer = np.array([LENGTH, LENGTH - WINDOW // 2], np.int32)
    causal, window = j <= i, (i - WINDOW <= j) & (j <= i)
    padding = np.broadcast_to(j < lengths[:, None, None], (BATCH, LENGTH, LENGTH))
    return [
        Case("full", lambda: None, None),
        Case("causal", jaxattn.masks.causal, causal[None]),
        Case("window", lambda: jaxattn.masks.sliding_window(WINDOW, 0), window[None]),
        Case("padding", lambda: jaxattn.masks.padding(lengths), padding),
        Case(
            "both",
            lambda: jaxattn.masks.sliding_window(WINDOW, 0) & jaxattn.masks.padding(longer),
            window & (j < longer[:, None, None]),
        ),
        Case("grouped", jaxattn.masks.causal, causal[None], kv_heads=2),
    ]


def prove_all(dtypes: Any) -> Iterator[dict[str, Any]]:
    """A row for each dtype, case and implementation; only kernels of a device may refuse a case."""
    for dtype in dtypes:
        for case in cases():
            yield from prove(case, jnp.dtype(dtype))


def prove(case: Case, dtype: Any) -> Iterator[dict[str, Any]]:
    """Output and gradients of every implementation against float64, by the rounding criterion."""
    arrays = [array.astype(dtype) for array in Point(BATCH, HEADS, case.kv_heads, LENGTH, LENGTH, WIDTH).arrays()]
    truth = exact(case, arrays)

    def run(attend: Callable[[Any, Any, Any], Any]) -> list[np.ndarray]:
        def with_gradients(q: Any, k: Any, v: Any, cotangent: Any) -> tuple[Any, ...]:
            output, pull = jax.vjp(attend, q, k, v)
            return output, *pull(cotangent)

        with jax.default_matmul_precision("highest"):  # else float32 products have ten bits on some devices
            return [np.asarray(result) for result in jax.jit(with_gradients)(*arrays)]

    blocked = None if case.array is None else jnp.asarray(case.array[:, None])  # B N T S
    yardstick = run(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=blocked, implementation="xla"))
    for name in IMPLEMENTATIONS:
        row = {"dtype": dtype.name, "case": case.name, "implementation": name}
        try:
            how: dict[str, Any] = {"implementation": name, "mask": case.mask()}
            chosen = jaxattn.explain_dispatch(*arrays[:3], **how).chosen
            results = run(lambda q, k, v: jaxattn.dot_product_attention(q, k, v, **how).output)  # noqa: B023 - run at once
        except (NotImplementedError, ValueError) as error:
            must = name in ("auto", "dense", "blockwise")
            yield {**row, "ok": not must, "verdict": f"{'FAILED' if must else 'not offered'}: {reason(error)}"}
            continue
        problems, largest = judge(results, yardstick, truth, dtype)
        yardstick = results if name == "dense" else yardstick
        verdict = "; ".join(problems) or f"ok by {chosen}, largest error {largest:.1e}"
        yield {**row, "ok": not problems, "verdict": f"FAILED: {verdict}" if problems else verdict}


def exact(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Output, dq, dk, dv in float64, whole."""
    group = HEADS // case.kv_heads
    whole = [np.empty(array.shape) for array in (arrays[0], *arrays[:3])]
    for example in range(BATCH):
        mask = None if case.array is None else case.array[example % len(case.array)]
        for kv_head in range(case.kv_heads):
            part = exact_part(arrays, (example, kv_head), mask, backward=True)
            heads = slice(kv_head * group, (kv_head + 1) * group)
            for array, place, result in zip(whole, (heads, heads, kv_head, kv_head), part.results, strict=True):
                array[example, :, place] = result
    return whole


def judge(
    results: list[np.ndarray], yardstick: list[np.ndarray], truth: list[np.ndarray], dtype: Any
) -> tuple[list[str], float]:
    """What fails, and the largest error of all."""
    scales = [output_scale(truth[0]), *[gradient_scale(truth[1:])] * 3]
    problems, largest = [], 0.0
    for name, ours, theirs, exact_result, scale in zip(NAMES, results, yardstick, truth, scales, strict=True):
        verdict, _ = rounding_verdict(ours, theirs, exact_result, scale=scale, dtype=dtype)
        largest = max(largest, verdict.error.largest)
        if verdict.problem:
            problems.append(f"{name} {verdict.problem}")
    return problems, largest
