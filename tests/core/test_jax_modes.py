"""JAX's strict modes: the operation is traced in them, with every kind of mask and option."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import dot_product_attention
from jaxattn.core.dot_product import dot_product_attention_stats
from jaxattn.core.heads import merge_heads, split_heads
from jaxattn.core.projection import project

from ..inputs import B, H, S, T, V
from ..jax_modes import MODES
from .mask_kinds import KINDS, N

#: The arrays of these are made in the dtype of q.
OPTIONS: dict[str, dict[str, Any]] = {
    "a bias of four axes": {"bias": np.ones((B, N, T, S))},
    "a bias of three axes": {"bias": np.ones((N, 1, S))},
    "a bias of two axes": {"bias": np.ones((T, S))},
    "a bias of one axis": {"bias": np.ones(S)},
    "a bias of none": {"bias": np.ones(())},
    "soft cap": {"soft_cap": 2.0},
    "score_mod": {"score_mod": lambda logit, b, n, i, j: logit + (i - j).astype(logit.dtype)},
    "score_mod, arrays": {"score_mod": (lambda logit, b, n, i, j, t: logit + t[i], (np.ones(T, np.float32),))},
    "dropout": {"dropout_rate": 0.3, "dropout_rng": jax.random.key(0)},
    "dropout mask": {"dropout_rate": 0.3, "dropout_mask": np.ones((T, S), bool)},
    "weights": {"return_weights": True, "bias": np.ones((T, S))},
    "some weights": {"weights_for": ([0], [1, 2]), "bias": np.ones(S), "mask": KINDS["padding"].mask},
    "uniform": {"mask": KINDS["padding"].mask, "empty_row": "uniform"},
    "scale": {"scale": np.asarray(0.3, np.float32)},
    "a boolean array": {"mask": np.ones((T, S), bool)},
    "both": {"mask": KINDS["causal"].mask & ~KINDS["padding"].mask | KINDS["array, (T, S)"].mask},
}
CASES = {**{name: {"mask": kind.mask} for name, kind in KINDS.items()}, **OPTIONS}


@pytest.mark.parametrize("implementation", ["dense", "blockwise", "decode"])
@pytest.mark.parametrize(("mode", "dtype"), [("rank_promotion", jnp.float32), ("strict_dtypes", jnp.bfloat16)])
def test_every_mask_and_option_is_traced_with_gradients(mode, dtype, implementation):
    shapes = ((B, T, N, H), (B, S, 1, H), (B, S, 1, V))
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    for name, options in CASES.items():
        given = {**options, "bias": jnp.asarray(options["bias"], dtype)} if "bias" in options else options

        def loss(q, k, v, given=given):
            output, weights = dot_product_attention(q, k, v, implementation=implementation, **given)
            whole = jnp.sum(output.astype(jnp.float32))
            return whole if weights is None else whole + jnp.sum(weights.astype(jnp.float32) ** 2)

        with MODES[mode]():
            try:
                found = jax.eval_shape(jax.grad(loss, (0, 1, 2)), *arguments)
            except Exception as error:
                raise AssertionError(f"{name} under {mode}") from error
        assert [gradient.dtype for gradient in found] == [dtype] * 3


@pytest.mark.parametrize(("mode", "dtype"), [("rank_promotion", jnp.float32), ("strict_dtypes", jnp.bfloat16)])
def test_statistics_and_projections(mode, dtype):
    x, weight, bias = (jnp.ones(shape, dtype) for shape in ((B, T, N * H), (V, N * H), (V,)))
    with MODES[mode]():
        assert project(x, weight, bias).dtype == dtype
        heads = split_heads(x, N)
        found = dot_product_attention_stats(heads, heads, heads, mask=KINDS["causal"].mask)
        assert found.row_max.dtype == jnp.float32 and merge_heads(found.output).dtype == dtype
