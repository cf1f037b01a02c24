"""jax.export with symbolic batch and lengths: one program for every size, for every case."""

import jax
import pytest
from jax import export

from ..cases import CASES
from ..inputs import B, S, T
from ..tolerances import close
from .run import call, jitted, made, one_of_each_class, values

#: Axes that are no length, and why.
FIXED = {"my_attn/batch": ("S", "the number of values is the width of the layer `attn`")}
#: The sizes of inputs.py are distinct: a size tells what it is.
SYMBOLS = {B: "b", T: "t", S: "s"}


def symbolic(name, value, scope):
    fixed, _ = FIXED.get(name, (None, None))
    sizes = []
    for axis, size in zip(value.axes.split(), value.array.shape, strict=True):
        if axis == "BN":
            sizes.append(f"{size // B} * b")
        else:
            sizes.append(SYMBOLS[size] if axis in ("B", "T", "S") and axis != fixed else str(size))
    return jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(sizes), scope=scope), value.array.dtype)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_batch_and_lengths_may_be_symbolic(name):
    case, module, inputs, arrays = made(name)
    scope = export.SymbolicScope()
    given = (
        tuple(symbolic(name, value, scope) for value in inputs),
        {key: symbolic(name, value, scope) for key, value in arrays.items()},
    )
    exported = export.export(jax.jit(lambda module, inputs, arrays: call(case, module, inputs, arrays)))(module, *given)
    assert all(export.is_symbolic_dim(output.shape[axes.split().index("B")]) for output, axes in zip(
        exported.out_avals, case.output_axes, strict=True
    ))  # fmt: skip
    if name in one_of_each_class():  # symbolic sizes fail in the trace, or nowhere
        given = values(inputs, arrays)
        expected = jitted(name)(module, *given)
        assert all(close(*pair) for pair in zip(exported.call(module, *given), expected, strict=True))
