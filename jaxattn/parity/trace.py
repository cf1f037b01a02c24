"""Layer by layer: the first place where a Flax module parts from its torch module, and the likely cause."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from ..convert.unwrap import unwrap
from . import limits
from .arguments import Arguments, check_numbers, nan_count
from .conditions import check_modules, devices, versions
from .criterion import OUTPUT_TOLERANCE
from .flax_side import in_float64
from .outputs import pair
from .runs import FLOAT32, FLOAT64, low_dtype
from .settings import float64_types
from .trace_report import AttentionMap, Evidence, TraceReport
from .tracing import torch_calls
from .tracing.arguments_apart import arguments_apart
from .tracing.blame import evidence_of, first_and_cause
from .tracing.configuration import configuration_findings
from .tracing.findings import listed
from .tracing.inside_pairs import inside_pairs
from .tracing.matched_weights import matched_weights
from .tracing.measuring import Measured, Sides
from .tracing.pairing import pair_modules, unpaired
from .tracing.precision import precision_cause
from .tracing.weight_causes import weight_findings


def trace(
    torch_module: Any,
    flax_module: nnx.Module,
    *inputs: Any,
    pairs: Mapping[str, str] | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> TraceReport:
    """Find where the same call parts on both sides, and why.

    Both modules run in float64 on copies, torch's without wrappers (DataParallel, torch.compile, …). Evidence is looked
    for in this order: the configuration differs; weights differ, and how; a right submodule gets other arguments, as a
    mask that is missing or inverted; a Flax submodule differs on torch's own input of that call, so that no layer is
    blamed for an earlier one; the whole run differs; if all of that agrees, the parameters' own dtype differs. The
    cause is a mistake that, made on torch's side, gives Flax's numbers exactly; else where in a forward to look.

    Args:
        torch_module: a live PyTorch module, deterministic (call .eval()).
        flax_module: its twin, made by `jaxattn.from_torch` or by hand.
        *inputs: positional arguments of both, as for `compare`.
        pairs: torch path → Flax path of submodules that belong together; the others pair by what from_torch recorded,
            else by the weights they hold, else by name. What has no partner is listed in the report.
        seed: of the directions in which inputs are moved by one ulp, where a limit depends on the conditioning.
        **kwargs: keyword arguments of both.

    Returns:
        A TraceReport: `print(report)`, `report.first`, `report.cause`, `report.assert_ok()`.

    Raises:
        TypeError: other things than a torch and a Flax module.
        ValueError: the torch module is not deterministic, dropout among it; or both return another number of arrays.
        ImportError: torch is not installed.
    """
    check_modules(torch_module, flax_module)
    torch_module = unwrap(torch_module, merge=True).module
    given = Arguments.of(torch_module.forward, inputs, kwargs)
    check_numbers(given)
    dtype = low_dtype(flax_module, given)
    given = given.at(dtype)
    watch, copied = limits.Watch(torch_module), torch_calls.copy_in(torch_module, FLOAT64)
    calls = torch_calls.calls_of(copied, given.at(FLOAT64), watcher=watch)
    limits.check_deterministic(torch_module, watch)
    limits.check_repeatable(calls[-1].outputs, torch_calls.call_torch(copied, given.at(FLOAT64)))

    paired = pair_modules(torch_module, flax_module, pairs)
    inside = inside_pairs(torch_module, flax_module, paired)
    paired |= inside
    weights = matched_weights(torch_module, flax_module, paired)
    with float64_types():
        findings, unknown = configuration_findings(copied, flax_module, paired)
        findings += weight_findings(torch_module, weights, paired)
        sides = Sides(calls, in_float64(flax_module), given.at(FLOAT64), paired, seed=seed, inside=frozenset(inside))
        _check_result(sides)
        measured = sides.measure()
        failing = any(not item.layer.ok for item in measured)
        notes = _limited(torch_module, watch, list(weights.ours), failing)
        if notes and failing:
            sides.narrow = torch_calls.calls_of(torch_calls.copy_in(torch_module, FLOAT32), given.at(FLOAT32))
            measured = sides.measure()
        apart = arguments_apart(sides, measured)
        first, cause = first_and_cause(sides, measured, findings, apart)
        evidence = _nan_evidence(given) + evidence_of(measured, findings, first, apart)
    if first is None and dtype != FLOAT64:
        first, cause = precision_cause(torch_module, flax_module, given, sides, dtype)
        evidence += [] if cause is None or first is None else [Evidence("precision", first, cause.sentence)]
    return TraceReport(
        type(torch_module).__name__,
        type(flax_module).__name__,
        tuple(item.layer for item in measured),
        tuple(evidence),
        first,
        None if cause is None else str(cause),
        tuple(unpaired(torch_module, flax_module, paired)),
        tuple(_maps(sides, measured)),
        tuple([*notes, *dict.fromkeys(sides.notes), *_unread(torch_module, unknown, weights.lonely)]),
        devices(torch_module),
        versions(),
        {
            "dtype": dtype.name,
            "seed": seed,
            "matmul_precision": "highest",
            "torch_fast_path": False,
            "torch_training": bool(torch_module.training),
            "tolerance": OUTPUT_TOLERANCE,
        },
    )


def _check_result(sides: Sides) -> None:
    """The whole modules return the same number of arrays.

    Raises:
        ValueError: they don't.
    """
    if sides.whole:
        torch_flat, flax_flat = sides.calls[-1].outputs, sides.whole[-1].outputs
        if len(torch_flat.arrays) != len(flax_flat.arrays):
            pair(torch_flat, flax_flat)


def _limited(torch_module: Any, watch: limits.Watch, held: Sequence[str], failing: bool) -> list[str]:
    """Why torch's float64 run is none; what only may be a reason counts where something fails."""
    certain = limits.certain_limits(torch_module, watch)
    found = certain or (limits.possible_limits(torch_module, watch, held) if failing else [])
    return [f"truth limited to float32 by {listed(found, 3)}"] if found else []


def _nan_evidence(given: Arguments) -> list[Evidence]:
    return [
        Evidence("nan", "", f"the input `{name}` holds NaN at {count} of {array.size} places")
        for name, array in zip(given.names, given.arrays, strict=True)
        if (count := nan_count(array))
    ]


def _maps(sides: Sides, measured: Sequence[Measured]) -> Iterator[AttentionMap]:
    """Of every attention call that both sides show."""
    ours = {(call.path, call.call): call.inside.get("weights") for call in sides.whole}
    for item in measured:
        weights = ours.get((item.layer.flax_path, item.layer.call))
        if item.attention is not None and weights is not None and weights.shape == item.attention.weights.shape:
            yield AttentionMap(item.layer.name, item.attention.weights, weights)


def _unread(torch_module: Any, unknown: Sequence[str], lonely: Sequence[str]) -> Iterator[str]:
    names = [path or type(torch_module).__name__ for path in unknown]
    if names:
        yield f"no configuration to compare with, no twin is registered: {listed(names)}"
    if lonely:
        yield f"parameters without a partner: {listed(lonely)}"
