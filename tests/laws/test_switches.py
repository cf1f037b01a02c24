"""No case lets JAX promote ranks or dtypes by itself, forward and in its gradients: both are errors here.

Nothing is run: promotion is decided while a program is traced.
"""

import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxattn
from jaxattn import layers
from jaxattn.core.activations import ACTIVATIONS

from ..cases import CASES
from ..convert.layer_table import LAYERS as TABLE
from ..inputs import B, D, T
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


#: Layers that no case has, or has in one form only; each takes [B, T, D] but Embedding, which takes ids.
LAYERS = {
    "embedding": lambda options: layers.Embedding(9, D, padding_idx=1, rngs=nnx.Rngs(0), **options),
    "layer_norm": lambda options: layers.LayerNorm(D, use_bias=False, rngs=nnx.Rngs(0), **options),
    "prelu": lambda options: layers.PReLU(**options),
    "prelu_channels": lambda options: layers.PReLU(T, **options),
    "rms_norm": lambda options: layers.RMSNorm((T, D), **options),
    "dropout": lambda options: layers.Dropout(0.5),
    **{
        f"activation_{name}": lambda options, name=name: layers.Activation(name)
        for name in (*ACTIVATIONS, "celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "identity", "leaky_relu",
                     "logsigmoid", "mish", "relu6", "selu", "sigmoid", "softmax", "softplus", "softsign")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_no_layer_promotes(name, kind):
    module = LAYERS[name]({"param_dtype": kind})
    inputs = jax.ShapeDtypeStruct(
        (B, T) if name == "embedding" else (B, T, D), "int32" if name == "embedding" else kind
    )

    def loss(module, inputs):
        training = {"deterministic": False, "rngs": nnx.Rngs(dropout=0)} if name == "dropout" else {}
        outputs = module(inputs, **training)
        return jnp.sum(outputs.astype(jnp.float32)), outputs

    with MODES["rank_promotion"](), MODES["strict_dtypes"]():
        (_, outputs), _ = jax.eval_shape(
            jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True), module, inputs
        )
    assert outputs.dtype == kind


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_no_twin_of_a_layer_promotes(name, dtype):
    """In evaluation mode, and batch norms in training mode too."""
    torch_module, shape = TABLE[name]
    module: Any = jaxattn.from_torch(copy.deepcopy(torch_module).eval().to(dtype))
    kind = str(dtype).removeprefix("torch.")
    modes = [{}, {"deterministic": False}] if name.startswith("batch_norm") else [{}]

    def loss(params, rest, inputs, options):
        outputs = nnx.merge(graphdef, params, rest, copy=True)(inputs, **options)
        return jnp.sum(outputs.astype(jnp.float32)), outputs

    graphdef, params, rest = nnx.split(module, nnx.Param, ...)
    for options in modes:
        function = jax.value_and_grad(partial(loss, options=options), argnums=(0, 2), has_aux=True)
        with MODES["rank_promotion"](), MODES["strict_dtypes"]():
            (_, outputs), _ = jax.eval_shape(function, params, rest, jax.ShapeDtypeStruct(shape, kind))
        assert outputs.dtype == kind


def test_attention_functions_promote_nothing():
    """Also in the arguments of jax.nn.dot_product_attention."""
    fn = jaxattn.as_attention_fn()
    heads = jax.ShapeDtypeStruct((B, T, 2, D), jnp.bfloat16)

    def attend(q, k, v, lengths):
        return [
            fn(q, k, v, query_seq_lengths=given, key_value_seq_lengths=given, is_causal=True, return_residual=True)
            for given in (lengths, lengths[0])
        ]

    with MODES["rank_promotion"](), MODES["strict_dtypes"]():
        (output, _), _ = jax.eval_shape(attend, heads, heads, heads, jax.ShapeDtypeStruct((B,), jnp.int32))
    assert output.dtype == jnp.bfloat16
