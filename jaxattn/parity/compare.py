"""One torch module against one Flax module: outputs, weights and gradients, in float64 and in the parameters' dtype."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from flax import nnx

from .._checks import listed
from ..convert.unwrap import unwrap
from . import criterion, flax_side, limits
from .arguments import Arguments, check_numbers, is_floating
from .conditions import check_modules, devices, versions
from .dropout_plan import DropoutPlan, check_plan
from .report import ParityReport
from .rows import fails_in_float64, nothing_row, weights_row
from .runs import FLOAT32, FLOAT64, Pair, Runs, low_dtype
from .settings import float64_types
from .trace import trace
from .weights import WeightsCheck, compare_weights


def compare(
    torch_module: Any,
    flax_module: nnx.Module,
    *inputs: Any,
    seed: int = 0,
    dropout: DropoutPlan | None = None,
    **kwargs: Any,
) -> ParityReport:
    """Compute the same call on both sides, in float64 and in the parameters' own dtype, and compare everything.

    loss = Σ output · cotangent over all floating outputs (weights included), cotangents standard normal. Compared are
    the state dicts bit for bit; every output; the gradient of the loss for every floating input and every parameter,
    under PyTorch's names. Criteria: see `criterion`; the truth at the low dtype is torch in float64 on the same rounded
    parameters and inputs. Neither module is changed.

    Args:
        torch_module: a live PyTorch module, deterministic (call .eval(), or give a plan for its dropout). Wrappers
            (DataParallel, torch.compile, …) come off, weights that are computed (weight_norm, …) are taken as they are.
        flax_module: its twin (`jaxattn.from_torch(torch_module)`).
        *inputs: positional arguments of both: NumPy, JAX or torch arrays of any floating dtype, cast to the
            parameters'; integers and booleans stay as they are. One object given twice is one array with one gradient.
        seed: of the cotangents.
        dropout: compare in training mode, with keep masks that are the same on both sides.
        **kwargs: keyword arguments of both: arrays (masks) as above, anything else (flags) as it is.

    Returns:
        A ParityReport: `print(report)`, `report.ok`, `report.assert_ok()`, `report.to_json()`,
            `report.save_html(path)`, which also traces the call layer by layer.

    Raises:
        ValueError: dropout is active without a plan, torch gives other values when run again, or the modules return
            other arrays.
        TypeError: no modules, arguments that are no numbers, or a Flax module that takes no keep masks.
        ConversionError: torch tensors that can't become arrays.
        ImportError: torch is not installed.
    """
    check_modules(torch_module, flax_module)
    check_plan(dropout)
    torch_module = unwrap(torch_module, merge=True).module
    weights = compare_weights(torch_module, flax_module)
    given = Arguments.of(torch_module.forward, inputs, kwargs)
    check_numbers(given)
    dtype = low_dtype(flax_module, given)
    pair = Pair(torch_module, flax_module, given.at(dtype), dtype, seed, dropout)

    watch = limits.Watch(torch_module)
    truth = pair.run_torch(FLOAT64, watcher=watch)
    limits.check_deterministic(torch_module, watch, dropout)
    pair.check_repeatable(truth)
    with float64_types():
        ours = pair.run_flax(flax_side.in_float64(flax_module), FLOAT64, truth)
    low_torch, low_ours = None, None
    if dtype != FLOAT64:
        low_torch = pair.run_torch(dtype)
        low_ours = pair.run_flax(flax_module, dtype, truth)

    certain = limits.certain_limits(torch_module, watch)
    possible = limits.possible_limits(torch_module, watch, weights.names)
    runs = Runs(pair, truth, ours, low_torch, low_ours)
    outputs, gradients = runs.rows()
    failing = fails_in_float64(outputs, gradients)
    if failing:
        runs.widened = pair.run_widened() if watch.narrowing else None
        runs.move()
        outputs, gradients = runs.rows()
        failing = fails_in_float64(outputs, gradients)
    if failing and (certain or possible):
        runs.float32_torch = low_torch if dtype == FLOAT32 else pair.run_torch(FLOAT32)
        outputs, gradients = runs.rows()
    limited = any(row.limited for row in (*outputs, *gradients))
    return ParityReport(
        type(torch_module).__name__,
        type(flax_module).__name__,
        dtype.name,
        seed,
        (weights_row(weights), *runs.input_rows(given), *nothing_row(outputs), *outputs, *gradients),
        tuple(_notes(certain or (possible if limited else []), weights, runs)),
        devices(torch_module),
        versions(),
        _conditions(torch_module, dropout),
        _trace=None if dropout is not None else partial(trace, torch_module, flax_module, *inputs, seed=seed, **kwargs),
    )


def _notes(found: Sequence[str], weights: WeightsCheck, runs: Runs) -> list[str]:
    notes = []
    if found:
        notes.append(f"truth limited to float32 by {listed(found, 3)}")
    if weights.unshared_buffers:
        buffers = listed([f"`{name}`" for name in weights.unshared_buffers])
        notes.append(f"buffers of the torch module that the Flax module doesn't hold: {buffers}")
    notes += [
        f"`{name}` has no gradient in torch, which computes without its values: that gradient is not compared"
        for name in runs.unused.values()
    ]
    ignored = [*runs.truth.outputs.ignored, *runs.ours.ignored]
    if ignored:
        notes.append(f"returned but not compared: {', '.join(ignored)}")
    if runs.low_torch is not None and runs.low_ours is not None:
        for name, theirs, ours in zip(
            runs.ours.names, runs.low_torch.outputs.arrays, runs.low_ours.outputs, strict=True
        ):
            if theirs.dtype != ours.dtype:
                notes.append(f"`{name}` is {theirs.dtype.name} in torch, {ours.dtype.name} in Flax")
    for name, ours in zip(runs.ours.names, runs.ours.outputs, strict=True):
        if is_floating(ours) and ours.dtype != FLOAT64:
            notes.append(f"`{name}` is {ours.dtype.name} in Flax's float64 run: the Flax module casts by itself")
    return notes


def _conditions(torch_module: Any, dropout: DropoutPlan | None) -> dict[str, Any]:
    return {
        "matmul_precision": "highest",
        "torch_fast_path": False,
        "torch_training": bool(torch_module.training) or dropout is not None,
        "dropout_seed": None if dropout is None else dropout.seed,
        "algorithm": {"outputs": criterion.OUTPUT_TOLERANCE, "gradients": criterion.GRADIENT_TOLERANCE},
        "rounding": {
            "max_factor": criterion.MAX_FACTOR,
            "max_ulps": criterion.MAX_ULPS,
            "rms_factor": criterion.RMS_FACTOR,
            "rms_ulps": criterion.RMS_ULPS,
        },
    }
