"""as_attention_fn in Flax's own modules, beside their default function.

nnx computes in float32 unless it drops or sows, so its modules here do one of the two where float64 is compared.
"""

from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxattn
from jaxattn import masks

from .adapting import SINGLE, D, N, agree, close, draw, padded
from .inputs import B, H, S, T
from .tolerances import FLOAT64

OURS_AND_THEIRS: list[dict[str, Any]] = [{"attention_fn": jaxattn.as_attention_fn(implementation="blockwise")}, {}]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def nnx_pair(**options: Any) -> tuple[Any, Any]:
    """Two modules of one seed: with our function, and with Flax's own."""
    settings: dict[str, Any] = {"in_features": D, "decode": False, "param_dtype": jnp.float64, **options}
    ours, theirs = (nnx.MultiHeadAttention(N, **settings, **chosen, rngs=nnx.Rngs(7)) for chosen in OURS_AND_THEIRS)
    return ours, theirs


def grads(module: Any, *inputs: Any, **call: Any) -> Any:
    """Output, gradients of the parameters and of the first input."""

    def loss(state, first):
        output = nnx.merge(graph, state, rest)(first, *inputs[1:], **call, rngs=nnx.Rngs(3))
        return jnp.sum(output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)), output

    graph, state, rest = nnx.split(module, nnx.Param, ...)
    (_, output), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(state, inputs[0])
    return output, nnx.to_pure_dict(gradients[0]), gradients[1]


@pytest.mark.parametrize("deterministic", [False, True], ids=["training", "evaluation"])
@pytest.mark.parametrize("batch", [(B,), (), (2, B)], ids=str)
def test_nnx_module(x64, batch, deterministic):
    """Forward and gradients, trained with the very dropout mask that Flax draws."""
    ours, theirs = nnx_pair(dropout_rate=0.3)
    inputs_q, inputs_k = draw(*batch, T, D, dtype=np.float64), draw(*batch, S, D, dtype=np.float64)
    mask = padded() if batch else padded()[1]
    results = [grads(module, inputs_q, inputs_k, mask=mask, deterministic=deterministic) for module in (ours, theirs)]
    agree(results)


def test_nnx_module_sows_what_flax_sows(x64):
    def weights(module, *inputs, **call):
        output, sown = nnx.capture(module, nnx.Intermediate)(*inputs, sow_weights=True, **call)
        return output, nnx.to_pure_dict(sown)

    inputs = draw(B, S, D, dtype=np.float64)
    mask = np.broadcast_to(padded(S), (B, N, S, S))
    results = [weights(module, inputs, mask=mask, is_causal=True) for module in nnx_pair()]
    agree(results)
    assert jax.tree.leaves(results[0][1])[0].shape == (B, N, S, S)
    agree(weights(module, inputs[0]) for module in nnx_pair())


def test_nnx_module_without_dropout_is_the_same_to_float32():
    ours, theirs = nnx_pair(param_dtype=jnp.float32)
    inputs, context = draw(B, T, D), draw(B, S, D)
    close(ours(inputs, context, mask=padded()), theirs(inputs, context, mask=padded()), SINGLE)


def test_nnx_decoding(x64):
    ours, theirs = nnx_pair(decode=True, dropout_rate=0.5, deterministic=True)
    tokens = draw(B, 4, D, dtype=np.float64)
    for module in (ours, theirs):
        module.init_cache(tokens.shape, jnp.float64)
    for step in range(4):
        agree(module(tokens[:, step : step + 1]) for module in (ours, theirs))


def test_modules_built_alike_share_traces():
    traces = []

    @nnx.jit
    def forward(module, inputs):
        traces.append(1)
        return module(inputs)

    for _ in range(2):
        fn = jaxattn.as_attention_fn()
        forward(nnx.MultiHeadAttention(N, D, decode=False, attention_fn=fn, rngs=nnx.Rngs(7)), draw(B, T, D))
    assert len(traces) == 1
    assert jaxattn.as_attention_fn() != jaxattn.as_attention_fn(soft_cap=3.0)
    assert jaxattn.as_attention_fn() != jaxattn.as_attention_fn(mask=masks.causal())


@pytest.mark.parametrize("kind", ["MultiHeadDotProductAttention", "MultiHeadAttention", "SelfAttention"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["training", "evaluation"])
def test_linen_module(x64, kind, deterministic):
    """Output, sown weights and gradients; the mask, the dropout and the module all arrive."""
    settings: dict[str, Any] = {"num_heads": N, "dropout_rate": 0.3, "param_dtype": jnp.float64}
    ours, theirs = (getattr(linen, kind)(**settings, **chosen) for chosen in OURS_AND_THEIRS)
    inputs, mask = draw(B, S, D, dtype=np.float64), padded(S)
    variables = theirs.init(jax.random.key(0), inputs, deterministic=True)

    def results(module):
        def loss(variables):
            output, sown = module.apply(
                variables, inputs, mask=mask, deterministic=deterministic, sow_weights=True,
                rngs={"dropout": jax.random.key(5)}, mutable=["intermediates"],
            )  # fmt: skip
            return jnp.sum(output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)), (output, sown)

        (_, results), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
        return results, gradients

    got, expected = results(ours), results(theirs)
    close(got, expected, FLOAT64)
    assert "attention_weights" in got[0][1]["intermediates"]
    plain = [module.apply(variables, inputs, mask=mask, deterministic=True) for module in (ours, theirs)]
    agree(plain)


def test_dropout_of_each_weight():
    """Not shared: other draws for each head and example; the key passes through, and nothing is drawn without one."""
    q, k, v = np.zeros((B, T, N, H), np.float32), draw(B, S, N, H), np.ones((B, S, N, H), np.float32)
    fn, rng = jaxattn.as_attention_fn(), jax.random.key(3)
    dropped: dict[str, Any] = {"dropout_rng": rng, "dropout_rate": 0.5}
    shared, each = fn(q, k, v, **dropped), fn(q, k, v, **dropped, broadcast_dropout=False)
    close(shared, jnp.broadcast_to(shared[:1, :, :1], shared.shape), SINGLE)
    assert not np.allclose(each[0], each[1]) and not np.allclose(each[:, :, 0], each[:, :, 1])
    close(each, jaxattn.dot_product_attention(q, k, v, **dropped).output, SINGLE)
    close(fn(q, k, v, **dropped, deterministic=True), jnp.asarray(np.ones_like(q)), SINGLE)
    with pytest.raises(ValueError, match="`dropout_rate` needs"):
        fn(q, k, v, dropout_rate=0.5)


def test_capture_sees_the_maps():
    module = nnx_pair(param_dtype=jnp.float32)[0]
    _, seen = jaxattn.capture(module, draw(B, T, D))
    assert [array.shape for name, array in seen.items() if name.endswith(":weights")] == [(B, N, T, T)]


def test_flax_asks_for_float32_weights():
    """force_fp32_for_softmax: Flax sows float32 weights of a bfloat16 module, and its function gives float32."""
    inputs = jnp.asarray(draw(B, S, D), jnp.bfloat16)
    kinds = []
    for attention_fn in (jaxattn.as_attention_fn(), linen.dot_product_attention):
        module = linen.MultiHeadDotProductAttention(
            N, dtype=jnp.bfloat16, attention_fn=attention_fn, force_fp32_for_softmax=True
        )
        variables = module.init(jax.random.key(0), inputs)
        output, sown = module.apply(variables, inputs, sow_weights=True, mutable=["intermediates"])
        heads = inputs.reshape(B, S, 1, D)
        alone = attention_fn(heads, heads, heads, force_fp32_for_softmax=True)
        kinds.append([str(x.dtype) for x in (output, *jax.tree.leaves(sown), alone)])
    assert kinds[0] == kinds[1] == ["bfloat16", "float32", "float32"]
