"""as_attention_fn in the place of jax.nn.dot_product_attention, its options, and the arguments that it must have."""

import inspect
from typing import Any, cast

import flax.linen.attention as linen_attention
import flax.nnx.nn.attention as nnx_attention
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn
from jaxattn import masks

from .adapting import SINGLE, N, close, draw, padded
from .errors import refuses
from .inputs import B, H, K, S, T, generator

FOREIGN = [jax.nn.dot_product_attention, nnx_attention.dot_product_attention, linen_attention.dot_product_attention]


@pytest.mark.parametrize("theirs", FOREIGN, ids=["jax", "nnx", "linen"])
def test_signature_has_every_argument_of_theirs(theirs):
    ours = inspect.signature(jaxattn.as_attention_fn()).parameters
    foreign = inspect.signature(theirs).parameters
    assert set(foreign) - set(ours) == set()
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in ours.values())
    positional = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_position = [name for name, p in foreign.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[: len(by_position)] == by_position[: len(positional)]
    for name in set(foreign) & set(ours):
        assert ours[name].default == foreign[name].default, name


@pytest.mark.parametrize("name", ["einsum_dot_general", "qk_attn_weights_einsum", "attn_weights_value_einsum"])
def test_matrix_products_of_the_caller_are_refused(name):
    q, k, v = draw(B, T, N, H), draw(B, S, N, H), draw(B, S, N, H)
    with pytest.raises(NotImplementedError, match=f"`{name}` must be None"):
        jaxattn.as_attention_fn()(q, k, v, **{name: cast(Any, jnp.einsum)})


def test_unknown_options():
    with pytest.raises(TypeError):
        jaxattn.as_attention_fn(window=3)  # type: ignore[call-arg]
    with refuses(ValueError, "`empty_row` must be one of"):
        jaxattn.as_attention_fn(empty_row="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`implementation` must be one of"):
        jaxattn.as_attention_fn(implementation="fast")
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        jaxattn.as_attention_fn(mask=np.ones((T, S)))


def some_blocked() -> Any:
    """−∞ at some keys of each row, nowhere at a whole row."""
    bias = draw(B, N, T, S)
    bias[..., ::3] = -np.inf
    return bias


KEEP = generator("mask").random((B, N, T, S)) < 0.6
NO_ROW_EMPTY = KEEP | (np.arange(S) == 1)
EMPTY = KEEP & (np.arange(T) != 2)[:, None]
LENGTHS_Q, LENGTHS_KV = np.array([T, 2, 0], np.int32), np.array([4, 0, S], np.int32)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bias": {"bias": draw(1, N, T, S)},
    "bias_for_all_heads": {"bias": draw(B, 1, 1, S)},
    "bias_rank_2": {"bias": draw(T, S)},
    "mask": {"mask": NO_ROW_EMPTY},
    "mask_rank_3": {"mask": KEEP[0] | np.eye(T, S, dtype=bool)},
    "mask_with_empty_rows": {"mask": EMPTY},
    "bias_and_mask": {"bias": draw(B, N, T, S), "mask": EMPTY},
    "infinite_bias": {"bias": some_blocked()},
    "infinite_bias_and_mask": {"bias": some_blocked(), "mask": NO_ROW_EMPTY},
    "large_bias_and_mask": {"bias": np.where(some_blocked() < -1e9, -1e9, 0.0).astype(np.float32), "mask": EMPTY},
    "scale": {"scale": 0.7},
    "causal": {"is_causal": True},
    "lengths_q": {"query_seq_lengths": LENGTHS_Q},
    "lengths_kv": {"key_value_seq_lengths": LENGTHS_KV},
    "lengths": {"query_seq_lengths": LENGTHS_Q, "key_value_seq_lengths": LENGTHS_KV, "is_causal": True},
    "window": {"local_window_size": 1},
    "window_of_two_sides": {"local_window_size": (2, 1)},
    "window_leaves_rows_empty": {"local_window_size": (0, 0), "mask": EMPTY},
    "all": {
        "bias": draw(B, N, T, S), "mask": EMPTY, "scale": 0.7, "is_causal": True, "query_seq_lengths": LENGTHS_Q,
        "key_value_seq_lengths": LENGTHS_KV, "local_window_size": (2, 1), "implementation": "xla",
    },
}  # fmt: skip
STATIC = ("is_causal", "local_window_size", "implementation", "scale")


def run(fn: Any, gradients: bool, q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> Any:
    """(output, residual), or instead the gradients of q, k, v and bias, in a jit with traced arrays."""
    fixed = {name: value for name, value in arguments.items() if name in STATIC}
    arrays = {name: value for name, value in arguments.items() if name not in STATIC}
    bias = {name: arrays.pop(name) for name in ("bias",) if name in arrays}

    def results(q, k, v, bias, arrays):
        return fn(q, k, v, **bias, **arrays, **fixed, return_residual=True)

    def loss(*operands):
        output, residual = results(*operands)
        weighed = output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)
        return weighed.sum() + jnp.where(jnp.abs(residual) < 1e30, residual, 0.0).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)) if gradients else results)(q, k, v, bias, arrays)


def xla(*args: Any, **kwargs: Any) -> Any:
    return jax.nn.dot_product_attention(*args, **{"implementation": "xla", **kwargs})


@pytest.mark.parametrize(
    ("name", "kv_heads", "implementation", "gradients"),
    [(name, K, "blockwise", False) for name in ARGUMENTS]
    + [("all", kv_heads, "blockwise", gradients) for kv_heads in (N, 1) for gradients in (False, True)]
    + [("all", K, "dense", gradients) for gradients in (False, True)]
    + [(name, K, "blockwise", True) for name in ("bias", "infinite_bias_and_mask", "lengths")],
)
def test_replaces_jax_nn(name, kv_heads, implementation, gradients):
    q, k, v = draw(B, T, N, H), draw(B, S, kv_heads, H), draw(B, S, kv_heads, H, seed="v")
    ours = jaxattn.as_attention_fn(implementation=implementation)
    expected = run(xla, gradients, q, k, v, ARGUMENTS[name])
    close(run(ours, gradients, q, k, v, ARGUMENTS[name]), expected, SINGLE)


@pytest.mark.parametrize("name", ["nothing", "all"])
def test_replaces_jax_nn_outside_jit_and_without_the_residual(name):
    q, k, v = draw(B, T, N, H), draw(B, S, K, H), draw(B, S, K, H, seed="v")
    output = jaxattn.as_attention_fn()(q, k, v, **ARGUMENTS[name])
    assert isinstance(output, jax.Array)
    close(output, xla(q, k, v, **ARGUMENTS[name]), SINGLE)


@pytest.mark.parametrize("residual", [False, True])
def test_rank_3(residual):
    q, k, v = draw(T, N, H), draw(S, K, H), draw(S, K, H, seed="v")
    arguments = {
        "mask": EMPTY[:1], "bias": draw(N, T, S), "return_residual": residual,
        "query_seq_lengths": np.array([4], np.int32), "key_value_seq_lengths": np.array([6], np.int32),
    }  # fmt: skip
    close(jaxattn.as_attention_fn()(q, k, v, **arguments), xla(q, k, v, **arguments), SINGLE)


def test_low_precision_keeps_its_dtype():
    q, k, v = (jnp.asarray(draw(B, length, N, H), jnp.bfloat16) for length in (T, S, S))
    ours = jaxattn.as_attention_fn()(q, k, v, mask=EMPTY, return_residual=True)
    close(ours, xla(q, k, v, mask=EMPTY, return_residual=True), 2.0**-7)


def test_where_it_differs_from_jax_nn():
    """Rows that a bias of −∞ has blocked: the mean over the keys instead of NaN."""
    q, k, v = draw(B, T, N, H), draw(B, S, N, H), draw(B, S, N, H, seed="v")
    bias = np.where(np.arange(T)[:, None] == 1, -np.inf, np.zeros((T, S), np.float32))
    assert np.isnan(xla(q, k, v, bias)[:, 1]).all()
    mean = np.broadcast_to(v.mean(1), (B, N, H))
    close(jaxattn.as_attention_fn()(q, k, v, bias)[:, 1], jnp.asarray(mean), SINGLE)


def test_implementation_of_a_call():
    q, k, v = draw(B, T, N, H), draw(B, S, N, H), draw(B, S, N, H)
    fn = jaxattn.as_attention_fn(implementation="blockwise")
    names = {None: "blockwise", "xla": "blockwise", "dense": "dense"}
    assert {name: fn._named(name) for name in names} == names
    assert jaxattn.as_attention_fn()._named("xla") == "dense"
    with pytest.raises(NotImplementedError, match="cudnn"):
        fn(q, k, v, implementation="cudnn")
    with pytest.raises(ValueError, match="`query_seq_lengths` must be"):
        fn(q, k, v, query_seq_lengths=np.array([1, 2]))


def test_options_reach_the_operation():
    q, k, v = draw(B, T, N, H), draw(B, S, K, H), draw(B, S, K, H, seed="v")
    options: dict[str, Any] = {"soft_cap": 0.8, "score_mod": lambda logit, b, n, i, j: logit + 0.1 * n - 0.2 * j}
    fn = jaxattn.as_attention_fn(mask=masks.causal(), empty_row="zero", **options)
    mask = masks.causal() & padded().astype(bool)
    expected = jaxattn.dot_product_attention(q, k, v, mask=mask, **options)
    close(fn(q, k, v, mask=padded()), expected.output, SINGLE)
    close(fn(q, k, v, mask=masks.from_array(padded() != 0)), expected.output, SINGLE)
    assert not fn(q, k, v, mask=padded())[0, -1].any()
    residual = fn(q, k, v, mask=padded(), return_residual=True)[1]
    assert (residual[0, -1] == -jnp.inf).all()


def test_a_negative_float_mask_is_refused():
    q, k, v = draw(B, T, N, H), draw(B, S, N, H), draw(B, S, N, H)
    with pytest.raises(ValueError, match="looks additive"):
        jaxattn.as_attention_fn()(q, k, v, mask=np.where(padded() > 0, 0.0, -1e9))


def test_dtype_and_promotion():
    q, k, v = draw(B, T, N, H), draw(B, S, N, H).astype(np.float16), draw(B, S, N, H)
    fn = jaxattn.as_attention_fn()
    assert fn(q, k, v).dtype == jnp.float32 and fn(q, k, v, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    seen = []

    def promote(arrays, *, dtype):
        seen.append(dtype)
        return tuple(jnp.asarray(array, jnp.float32) for array in arrays)

    assert fn(q, k, v, promote_dtype=promote).dtype == jnp.float32 and seen == [None]
