"""A program for eight simulated devices, asked for before JAX starts: `python -m tests.core.on_eight_devices`.

The operation divided over a mesh, by `jax.shard_map`, by explicit axes, by jit and by pmap, against itself undivided.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxattn import dot_product_attention
from jaxattn.core import masks
from jaxattn.parity.quick import quickly

from ..inputs import generator
from ..tolerances import close

SHAPE, SPEC = (4, 160, 2, 8), P("data", None, "model")
RNG = generator("devices")
ARRAYS = [RNG.normal(size=SHAPE).astype(np.float32) for _ in range(4)]
LENGTHS = np.array([160, 3, 70, 0], np.int32)


def attend(implementation, q, k, v, lengths):
    mask = masks.padding(lengths) & masks.causal(1)
    return dot_product_attention(q, k, v, mask=mask, empty_row="uniform", implementation=implementation).output


def results(function):
    """Output and gradients."""

    def run(q, k, v, cotangent, lengths):
        output, pull = jax.vjp(lambda q, k, v: function(q, k, v, lengths), q, k, v)
        return output, *pull(cotangent)

    return run


def mesh_of(kind):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


def main():
    for implementation in ("dense", "blockwise", "decode"):

        def function(*arrays, implementation=implementation):
            return attend(implementation, *arrays)

        expected = quickly(results(function))(*ARRAYS, LENGTHS)
        mesh, explicit = mesh_of(AxisType.Auto), mesh_of(AxisType.Explicit)
        specs = (*(SPEC,) * 4, P("data"))
        mapped = jax.shard_map(function, mesh=mesh, in_specs=(*specs[:3], P("data")), out_specs=SPEC)
        found = {"shard_map": quickly(results(mapped))(*ARRAYS, LENGTHS)}
        with jax.set_mesh(explicit):
            placed = [
                jax.device_put(x, NamedSharding(explicit, s)) for x, s in zip((*ARRAYS, LENGTHS), specs, strict=True)
            ]
            found["explicit"] = quickly(results(function))(*placed)
            assert all(tuple(jax.typeof(x).sharding.spec)[:3] == tuple(SPEC) for x in found["explicit"])
        if implementation == "blockwise":
            placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip((*ARRAYS, LENGTHS), specs, strict=True)]
            found["jit"] = quickly(results(function))(*placed)
            found["pmap"] = jax.pmap(results(function))(*(x[:, None] for x in (*ARRAYS, LENGTHS)))
            alone = [array[0] for array in ARRAYS[:3]]  # keys and values that all devices share: their gradients add up

            def shared(q, k, v, lengths, function=function):
                return function(q, *(jnp.broadcast_to(x, (q.shape[0], *x.shape)) for x in (k, v)), lengths)

            divided = jax.shard_map(shared, mesh=mesh, in_specs=(P("data"), P(), P(), P("data")), out_specs=P("data"))
            given = (ARRAYS[0], *alone[1:], ARRAYS[3], LENGTHS)
            for ours, whole in zip(quickly(results(divided))(*given), quickly(results(shared))(*given), strict=True):
                assert close(ours, whole), (implementation, "shared")
        for name, arrays in found.items():
            for ours, whole in zip(arrays, expected, strict=True):
                assert close(np.reshape(ours, whole.shape), whole), (implementation, name)
    print("done")


if __name__ == "__main__":
    main()
