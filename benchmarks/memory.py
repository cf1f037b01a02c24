"""Memory of the attention operation beside its inputs and results, as XLA plans it; nothing large is run.

One example, 8 heads of width 64, over the length; forward, and forward and backward. torch plans nothing ahead, so it
is not here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxattn.conditions import conditions
from jaxattn.timing import ParityFailure

from .conditions import announce, options, save
from .curves import plot_curves
from .gate import check, exact_parts
from .grid import Point
from .ratios import Verdict, print_verdicts
from .systems import DENSE, JAX_NN, OURS, jax_function, prepare

LENGTHS = (1024, 2048, 4096, 8192, 16384)
TINY = (64, 128)
SYSTEMS = (OURS, DENSE, JAX_NN)
MIB = 2**20
#: MiB at the longest length, and the growth between the two longest: bytes ∝ T to this power at most.
MOST_MIB = {"forward": 192, "forward and backward": 512}
MOST_GROWTH = 1.1


def main(argv: list[str]) -> int:
    """0, or 1 if a system differs from float64 (nothing is written then) or a full run misses a target."""
    given = options("memory", __doc__, argv)
    lengths = TINY if given.quick else LENGTHS
    results = []
    for causal in (False,) if given.quick else (False, True):
        for name in (OURS, JAX_NN) if given.quick else SYSTEMS:
            announce(f"{name}, {'causal' if causal else 'full'} …")
            try:
                errors = small_parity(name, causal)
            except ParityFailure as failure:
                announce(f"{failure} {failure.report}")
                return 1
            results += [{**row, "parity": errors} for row in measure(name, causal, lengths)]
    for row in results:
        sizes = ", ".join(f"{length}: {size / MIB:.1f}" for length, size in row["bytes"].items())
        print(f"{row['label']}, MiB by length: {sizes}")
    verdicts = judge(results)
    met = print_verdicts(verdicts)
    facts = {"title": "Attention, memory beside inputs and results", "inputs": "B1 N8 H64", "dtype": "float32"}
    stated = conditions(**facts, quick=given.quick, method="temp_size_in_bytes of XLA's memory_analysis()")
    data = {"conditions": stated, "targets": [verdict.to_json() for verdict in verdicts], "results": results}
    if save("memory", data, given):
        picture = given.out / "memory.png"
        axis = "MiB, logarithmic; less is better"
        plot_curves(curves(results), picture, title=f"{stated['title']}, B1 N8 H64", axis=axis, conditions=stated)
    return 0 if met or given.quick else 1


def small_parity(name: str, causal: bool) -> dict[str, float]:
    """Errors of a run with gradients at a small size.

    Raises:
        ParityFailure: the system differs from float64.
    """
    point = Point(1, 2, 2, 48, 48, 16, causal)
    arrays = point.arrays()
    results = prepare(name, point, arrays, backward=True).results()
    return check(name, results, exact_parts(point, arrays, backward=True))


def measure(name: str, causal: bool, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Bytes by length, a row for forward and one for forward and backward."""
    rows = []
    for kind in MOST_MIB:
        sizes = {length: planned_bytes(name, length, causal, backward=kind != "forward") for length in lengths}
        label = f"{name}, {'causal' if causal else 'full'}, {kind}"
        rows.append({"label": label, "system": name, "causal": causal, "kind": kind, "bytes": sizes})
    return rows


def planned_bytes(name: str, length: int, causal: bool, *, backward: bool) -> int:
    """XLA's temporaries for one call."""
    point = Point(1, 8, 8, length, length, 64, causal)
    given = [jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)] * (4 if backward else 3)
    compiled = jax.jit(jax_function(name, point, backward=backward)).lower(*given).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise NotImplementedError("XLA tells no memory sizes on this device.")
    return analysis.temp_size_in_bytes


def judge(results: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Ours at the longest length, and how it grows."""
    verdicts = []
    for row in results:
        if row["system"] == OURS:
            (shorter, before), (longest, size) = list(row["bytes"].items())[-2:]
            growth = math.log(max(size, 1) / max(before, 1)) / math.log(longest / shorter)
            where = f"{'causal' if row['causal'] else 'full'}, {row['kind']}"
            verdicts.append(Verdict(f"{where}, T = {longest}", size / MIB, MOST_MIB[row["kind"]], False, "MiB"))
            power = f"{where}, growth with T from {shorter} to {longest}, as a power"
            verdicts.append(Verdict(power, growth, MOST_GROWTH, False, ""))
    return verdicts


def curves(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Panel → system → (T, MiB)."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in results:
        lines = panels.setdefault(f"{row['kind']}, {'causal' if row['causal'] else 'full'}", {})
        lines[row["system"]] = [(length, size / MIB) for length, size in row["bytes"].items()]
    return panels
