"""Where both sides agree in float64 and one of them rounds more than it may in the parameters' own dtype."""

from typing import Any

import numpy as np
from flax import nnx

from ..arguments import Arguments, is_floating
from ..criterion import output_scale, rounding_verdict
from . import flax_calls, torch_calls
from .findings import Cause
from .measuring import Sides


def precision_cause(
    torch_module: Any, flax_module: nnx.Module, arguments: Arguments, sides: Sides, dtype: np.dtype
) -> tuple[str | None, Cause | None]:
    """(torch path of the first call that rounds too much, by how much).

    Args:
        torch_module: as given, in its own dtype.
        flax_module: likewise.
        arguments: of the call, in that dtype.
        sides: the float64 run, which is the truth.
        dtype: of the parameters.
    """
    theirs = torch_calls.calls_of(torch_calls.copy_in(torch_module, None), arguments)
    ours = {
        (call.path, call.call): call
        for call in sides.comparable(flax_calls.calls_of(nnx.clone(flax_module), arguments))
    }
    for truth, narrow in zip(sides.calls, theirs, strict=True):
        mine = ours.get((sides.paired.get(truth.path, "-"), truth.call))
        for expected, given, result in zip(
            truth.outputs.arrays, narrow.outputs.arrays, () if mine is None else mine.outputs.arrays, strict=False
        ):
            if expected.shape != result.shape or not is_floating(expected):
                continue
            verdict, error = rounding_verdict(result, given, expected, scale=output_scale(expected), dtype=dtype)
            if verdict.problem is not None:
                sentence = (
                    f"both sides agree in float64; in {dtype.name} Flax is off by {verdict.error.largest:.2g}, torch "
                    f"by {error.largest:.2g}, allowed {verdict.allowed:.2g}"
                )
                return truth.path, Cause("precision", sentence + _computes_in(flax_module, sides.paired[truth.path]))
    return None, None


def _computes_in(flax_module: nnx.Module, path: str) -> str:
    dtype = getattr(flax_calls.modules_of(flax_module)[path], "dtype", None)
    return "" if dtype is None else f"; its `dtype` is {np.dtype(dtype).name}"
