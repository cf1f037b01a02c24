"""No case lets JAX promote ranks or dtypes by itself, forward and in its gradients: both are errors here.

Nothing is run: promotion is decided while a program is traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ..cases import CASES
from ..jax_modes import MODES
from .run import call, made, values


@pytest.mark.parametrize("name", [case.name for case in CASES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_nothing_is_promoted(name, dtype):
    case, module, inputs, arrays = made(name)
    kind = str(dtype).removeprefix("torch.")
    if dtype != torch.float32:
        module = case.flax(case.oracle().to(dtype))
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, kind if np.issubdtype(x.dtype, np.floating) else x.dtype),
        values(inputs, arrays),
    )

    def loss(module, inputs, arrays):
        return sum(jnp.sum(result.astype(jnp.float32)) for result in call(case, module, inputs, arrays))

    with MODES["rank_promotion"](), MODES["strict_dtypes"]():
        _, (_, of_inputs) = jax.eval_shape(
            jax.value_and_grad(loss, argnums=(0, 1), allow_int=True), module, given[0], given[1]
        )
    wanted = [x.dtype for x in given[0] if jnp.issubdtype(x.dtype, jnp.floating)]
    assert [x.dtype for x in of_inputs if jnp.issubdtype(x.dtype, jnp.floating)] == wanted
