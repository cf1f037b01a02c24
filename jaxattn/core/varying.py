"""Inside `jax.shard_map` a type says over which mesh axes a value varies, and what goes into a loop must say it."""

from typing import Any

import jax
from jax import lax


def varying_like(tree: Any, reference: Any) -> Any:
    """The same values, with the type of arrays that vary wherever one of `reference` does."""
    axes = frozenset[Any]().union(*(_axes(leaf) for leaf in jax.tree.leaves(reference)))

    def varied(leaf: Any) -> Any:
        missing = axes - _axes(leaf)
        return lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(varied, tree) if axes else tree


def _axes(array: Any) -> frozenset[Any]:
    return jax.typeof(array).manual_axis_type.varying
