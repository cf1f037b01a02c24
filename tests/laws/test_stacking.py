"""Layers whose parameters are stacked, scanned and rematerialised compute what the loop over the layers does.

That is how deep models are trained in JAX: `jax.lax.scan` over `jax.checkpoint(layer)`. It runs with debug_nans and
without rank promotion.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxattn.parity.quick import quickly

from ..cases import CASES
from ..jax_modes import MODES
from ..tolerances import close
from .run import call, made, one_of_each_class, values

#: Cases whose output can't be the input of the next layer; they are rematerialised alone.
NO_LAYER = {
    "my_attn/batch": "its output has another width than its query",
    "bert/padding": "it takes tokens and gives features",
}


#: Cases that are executed, which is when debug_nans looks: rows with nothing to attend among them.
EXECUTED = {*one_of_each_class(), "scaled_dot_product/mask_empty_row", "multi_head/cross_empty_row"}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_scan_over_checkpointed_layers_equals_the_loop(name):
    case, module, inputs, arrays = made(name)
    inputs, arrays = values(inputs, arrays)
    output = jax.eval_shape(lambda module: call(case, module, inputs, arrays)[0], module)
    fits = [i for i, x in enumerate(inputs) if (x.shape, x.dtype) == (output.shape, output.dtype)]
    assert bool(fits) == (name not in NO_LAYER)
    graphdef, state = nnx.split(module)
    states = [state, jax.tree.map(jnp.flip, state)] if fits else [state]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    cotangent = np.cos(np.arange(output.size, dtype=np.float32)).reshape(output.shape)
    carried = fits[0] if fits else 0

    def layer(x, state):
        given = (*inputs[:carried], x, *inputs[carried + 1 :])
        return call(case, nnx.merge(graphdef, state), given, arrays)[0]

    def scanned(x, stacked):
        if not fits:
            return jax.checkpoint(layer)(x, jax.tree.map(lambda leaf: leaf[0], stacked))
        return jax.lax.scan(lambda x, state: (jax.checkpoint(layer)(x, state), None), x, stacked, len(states))[0]

    def looped(x, stacked):
        for i in range(len(states)):
            x = layer(x, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
        return x

    def results(run):
        def loss(x, stacked):
            outputs = run(x, stacked)
            return jnp.sum(outputs * cotangent), outputs

        function = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True)
        make = quickly if name in EXECUTED else lambda function: partial(jax.eval_shape, function)
        return make(function)(inputs[carried], stacked)

    with MODES["rank_promotion"](), MODES["debug_nans"]():
        got, expected = (jax.tree.leaves(results(run)) for run in (scanned, looped))
    floating = [i for i, leaf in enumerate(expected) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(floating) >= 2 and [leaf.shape for leaf in got] == [leaf.shape for leaf in expected]
    if name in EXECUTED:
        assert all(close(got[i], expected[i]) for i in floating)
        assert all(np.asarray(expected[i]).any() for i in floating[:2])
