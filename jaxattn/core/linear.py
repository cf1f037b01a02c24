"""A linear function with a transpose of its own, which every transformation of JAX passes through.

`jax.custom_vjp` refuses forward mode and `jax.custom_derivatives.linear_call` refuses vmap and second derivatives; one
primitive with a rule for each does neither. It is the tangent of a `jax.custom_jvp` whose backward is written by hand.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@runtime_checkable
class LinearRule(Protocol):
    """A hashable description of a function that is linear in `operands`, at fixed `residuals`."""

    def apply(self, residuals: Any, operands: Any, /) -> Any:
        """The outputs."""
        ...

    def transpose(self, residuals: Any, cotangents: Any, /) -> Any:
        """Cotangents of the operands, from those of the outputs."""
        ...

    def reference(self, residuals: Any, operands: Any, /) -> Any:
        """The outputs once more, made of operations that JAX can differentiate in both modes, in everything."""
        ...


_linear = Primitive("jaxattn_linear")
_linear.multiple_results = True


def linear_call(rule: LinearRule, residuals: Any, operands: Any) -> Any:
    """rule.apply(residuals, operands), linear in the operands: pytrees of arrays."""
    flat_residuals, residual_tree = jax.tree.flatten(residuals)
    flat_operands, operand_tree = jax.tree.flatten(operands)
    output_tree = jax.tree.structure(jax.eval_shape(rule.apply, residuals, operands))
    trees = (residual_tree, operand_tree, output_tree)
    outputs = _linear.bind(*flat_residuals, *flat_operands, rule=rule, trees=trees, batched=())
    return jax.tree.unflatten(output_tree, outputs)


def _flat(method: Callable, trees: Any, batched: Any, *, transposed: bool = False) -> Callable:
    """`method` over flat arguments, mapped over the batch axes it was given, the first one innermost."""
    residual_tree, operand_tree, output_tree = trees
    second_tree = output_tree if transposed else operand_tree
    split = residual_tree.num_leaves

    def function(*flat):
        residuals = jax.tree.unflatten(residual_tree, flat[:split])
        return jax.tree.leaves(method(residuals, jax.tree.unflatten(second_tree, flat[split:])))

    for axes in batched:  # of the residuals; operands and cotangents always have the axis
        function = jax.vmap(function, in_axes=(*axes, *(0,) * second_tree.num_leaves))
    return function


def _implementation(*flat, rule, trees, batched):
    return _flat(rule.apply, trees, batched)(*flat)


def _abstract(*avals, rule, trees, batched):
    arguments = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding, manual_axis_type=a.manual_axis_type) for a in avals
    ]
    return jax.make_jaxpr(_flat(rule.apply, trees, batched))(*arguments).out_avals


def _differentiate(primals, tangents, *, rule, trees, batched):
    outputs = _linear.bind(*primals, rule=rule, trees=trees, batched=batched)
    split = trees[0].num_leaves
    residuals, operands = primals[:split], primals[split:]
    changes = [ad.Zero(jax.typeof(output)) for output in outputs]
    if any(not isinstance(tangent, ad.Zero) for tangent in tangents[split:]):
        moved = [ad.instantiate_zeros(tangent) for tangent in tangents[split:]]
        changes = _linear.bind(*residuals, *moved, rule=rule, trees=trees, batched=batched)
    where = [n for n, tangent in enumerate(tangents[:split]) if not isinstance(tangent, ad.Zero)]
    if where:

        def at_residuals(*changed):
            everything = list(residuals)
            for n, value in zip(where, changed, strict=True):
                everything[n] = value
            return _flat(rule.reference, trees, batched)(*everything, *operands)

        _, further = jax.jvp(at_residuals, [residuals[n] for n in where], [tangents[n] for n in where])
        changes = [ad.add_tangents(change, more) for change, more in zip(changes, further, strict=True)]
    return outputs, changes


def _transpose(cotangents, *arguments, rule, trees, batched):
    split = trees[0].num_leaves
    residuals, operands = arguments[:split], arguments[split:]
    cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    found = _flat(rule.transpose, trees, batched, transposed=True)(*residuals, *cotangents)
    wanted = [value if ad.is_undefined_primal(o) else None for value, o in zip(found, operands, strict=True)]
    return [None] * split + wanted


def _batch(arguments, axes, *, rule, trees, batched):
    split = trees[0].num_leaves
    size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
    front = [a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True)]
    operands = [
        jnp.broadcast_to(a, (size, *a.shape)) if axis is None else a
        for a, axis in zip(front[split:], axes[split:], strict=True)
    ]
    levels = (*batched, tuple(None if axis is None else 0 for axis in axes[:split]))
    outputs = _linear.bind(*front[:split], *operands, rule=rule, trees=trees, batched=levels)
    return outputs, [0] * len(outputs)


_linear.def_impl(_implementation)
_linear.def_abstract_eval(_abstract)
ad.primitive_jvps[_linear] = _differentiate
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(_linear, mlir.lower_fun(_implementation, multiple_results=True))
