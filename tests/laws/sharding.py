"""Every case split over devices by its batch, by jax.shard_map and on a mesh of explicit axes.

A program of its own, for devices are simulated before JAX starts: `python -m tests.laws.sharding` prints what fails.
"""

import json
import os
import sys
import traceback
from typing import Any

from ..inputs import B

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={B}"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxattn.parity.quick import quickly

from ..cases import CASES, Input
from ..tolerances import close
from .run import call, made, one_of_each_class, values


def split(axes: str) -> P:
    return P(*("data" if axis in ("B", "BN") else None for axis in axes.split()))


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda value: split(value.axes), tree, is_leaf=lambda value: isinstance(value, Input))


def with_gradients(run: Any) -> Any:
    """(outputs, gradients of the module and of the inputs)."""

    def loss(module, inputs, arrays):
        outputs = run(module, inputs, arrays)
        return sum(jnp.sum(jnp.sin(output)) for output in outputs), outputs

    def both(module, inputs, arrays):
        (_, outputs), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True)(
            module, inputs, arrays
        )
        return outputs, gradients

    return both


def agree(got: Any, expected: Any) -> bool:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return all(close(a, b) for a, b in pairs if np.issubdtype(b.dtype, np.floating))


def check(name: str, mesh_kind: str, run_it: bool) -> None:
    case, module, inputs, arrays = made(name)
    mesh = jax.make_mesh((B,), ("data",), axis_types=(getattr(AxisType, mesh_kind),))
    given = values(inputs, arrays)

    def plain(module, inputs, arrays):
        return call(case, module, inputs, arrays)

    outputs = [split(axes) for axes in case.output_axes]
    if mesh_kind == "Auto":
        mapped = jax.shard_map(plain, mesh=mesh, in_specs=(P(), specs(inputs), specs(arrays)), out_specs=outputs)
        jax.eval_shape(with_gradients(mapped), module, *given)
        if run_it:
            expected = quickly(with_gradients(plain))(module, *given)
            assert agree(quickly(with_gradients(mapped))(module, *given), expected), "other values"
        return
    expected = quickly(with_gradients(plain))(module, *given) if run_it else None
    with jax.set_mesh(mesh):
        placed = jax.tree.map(
            lambda value, spec: jax.device_put(value, NamedSharding(mesh, spec)), given, (specs(inputs), specs(arrays))
        )
        results, _ = jax.eval_shape(with_gradients(plain), module, *placed)
        got = [tuple(result.sharding.spec) for result in results]
        assert got == [tuple(spec) for spec in outputs], f"sharded as {got}"
        if run_it:
            assert agree(quickly(with_gradients(plain))(module, *placed), expected), "other values"


def main() -> None:
    failures = []
    for case in CASES:
        for mesh_kind in ("Auto", "Explicit"):
            try:
                check(case.name, mesh_kind, case.name in one_of_each_class())
            except Exception as error:  # all of them, in one run
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = str(error).splitlines()[0][:300] if str(error) else ""
                failures.append(f"{case.name}, {mesh_kind}: {type(error).__name__}: {text} ({place.name})")
    json.dump({"devices": jax.device_count(), "cases": len(CASES), "failures": failures}, sys.stdout)


if __name__ == "__main__":
    main()
