"""What a mesh of devices puts into the types of arrays: over which axes they vary, and how they are divided."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec, auto_axes


def varying_like(tree: Any, reference: Any) -> Any:
    """The same values, with the type of arrays that vary wherever one of `reference` does.

    Inside `jax.shard_map` the types of what goes into a loop and of what comes out must say the same.
    """
    axes = frozenset[Any]().union(*(_axes(leaf) for leaf in jax.tree.leaves(reference)))

    def varied(leaf: Any) -> Any:
        missing = axes - _axes(leaf)
        return lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(varied, tree) if axes else tree


def division(array: Any) -> tuple[Any, ...]:
    """By which explicit axes of the mesh each axis of an array is divided, None for none."""
    kind = jax.typeof(array)
    spec = tuple(kind.sharding.spec)
    return spec + (None,) * (len(kind.shape) - len(spec))


def automatic(function: Callable, argument: Any, divisions: Any) -> Any:
    """function(argument), where XLA finds by itself how what lies between is divided.

    Only where an array is divided by an axis of an explicit mesh (`jax.set_mesh`): there JAX wants each operation to
    say how its result is, blocks and reshapes too.

    Args:
        function: of one pytree, to a named tuple of arrays or None.
        argument: the pytree.
        divisions: of the fields of the result, each as `division` gives it.
    """
    if all(part is None for leaf in jax.tree.leaves(argument) for part in division(leaf)):
        return function(argument)
    undivided = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.typeof(leaf).dtype), argument)
    shapes = jax.eval_shape(function, undivided)
    specs = [None if field is None else PartitionSpec(*d) for field, d in zip(shapes, divisions, strict=True)]
    return auto_axes(function, out_sharding=type(shapes)(*specs))(argument)


def _axes(array: Any) -> frozenset[Any]:
    return jax.typeof(array).manual_axis_type.varying
