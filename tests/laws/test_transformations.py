"""jit equals eager; vmap of the single example equals the batch and the loop; one trace for one shape."""

import jax
import numpy as np
import pytest

from ..cases import CASES
from ..inputs import B
from ..tolerances import close
from .run import call, jitted, leaves, made, values

names = pytest.mark.parametrize("name", [case.name for case in CASES])


@names
def test_jit_equals_eager(name):
    case, module, inputs, arrays = made(name)
    eager = call(case, module, *values(inputs, arrays))
    compiled = jitted(name)(module, *values(inputs, arrays))
    assert len(eager) == len(case.output_axes)
    assert all(close(ours, reference) for ours, reference in zip(compiled, eager, strict=True))


@names
def test_vmap_equals_loop_equals_batch(name):
    case, module, inputs, arrays = made(name)
    batch = jitted(name)(module, *values(inputs, arrays))

    def single(inputs, arrays):
        return leaves(module(*inputs, **arrays, **case.flags))

    in_axes = (
        tuple(value.batch_axis for value in inputs),
        {key: value.batch_axis for key, value in arrays.items()},
    )
    out_axes = [axes.split().index("B") for axes in case.output_axes]
    stacked = (tuple(value.batched() for value in inputs), {key: value.batched() for key, value in arrays.items()})
    mapped = jax.jit(jax.vmap(single, in_axes=in_axes, out_axes=out_axes))(*stacked)
    assert all(close(ours, reference) for ours, reference in zip(mapped, batch, strict=True))

    one = jax.jit(single)
    for b in range(B):
        example = one(
            tuple(value.example(b) for value in inputs), {key: value.example(b) for key, value in arrays.items()}
        )
        for ours, reference, axis in zip(example, batch, out_axes, strict=True):
            assert close(ours, np.take(np.asarray(reference), b, axis=axis))


@names
def test_two_batch_axes_equal_one(name):
    """[B, 1, …] gives what [B, …] gives, for every input whose first axis is the batch."""
    case, module, inputs, arrays = made(name)
    plain = jitted(name)(module, *values(inputs, arrays))

    def widened(value):
        array = value.array
        if value.axes.startswith("BN") or value.batch_axis is None:
            return array
        return np.expand_dims(array, value.batch_axis + 1)

    wide = jitted(name)(module, tuple(map(widened, inputs)), {key: widened(value) for key, value in arrays.items()})
    for ours, reference, axes in zip(wide, plain, case.output_axes, strict=True):
        assert close(np.squeeze(np.asarray(ours), axes.split().index("B") + 1), reference)


@names
def test_one_trace_per_shape(name):
    case, module, inputs, arrays = made(name)
    traces = []

    @jax.jit
    def run(module, inputs, arrays):
        traces.append(None)
        return call(case, module, inputs, arrays)

    inputs, arrays = values(inputs, arrays)
    for other in (inputs, tuple(np.flip(x).copy() for x in inputs)):
        run(module, other, arrays)
    assert len(traces) == 1
