"""NaN, infinities and huge logits: what is blocked has no influence, the rest the same in every implementation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from jaxattn import dot_product_attention
from jaxattn.core import masks
from jaxattn.core.schedule import Schedule
from jaxattn.parity.quick import quickly

from ..inputs import generator
from ..jax_modes import MODES

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["dense", "blockwise", "decode"])
T, S, N, K, H, V = 11, 13, 4, 2, 3, 2
LENGTH, LATE = 8, 6
#: Key 2 is blocked for all queries by the first kind of mask; LATE and those after it, for the early queries alone.
RULE = np.tril(np.ones((T, S), bool)) & (np.arange(S) < LENGTH) & (np.arange(S) != 2)
BIAS = np.where(RULE, generator("bias").normal(size=(T, S)), -np.inf)
MASKS = {
    "array": lambda: {"mask": RULE},
    "static": lambda: {"mask": masks.causal() & ~(masks.causal(2) & masks.from_predicate(lambda b, n, i, j: j == 2))},
    "padding": lambda: {"mask": masks.padding(jnp.asarray(LENGTH)) & masks.causal()},
    "bias": lambda: {"bias": BIAS},
}
ALLOWED = {
    "array": RULE,
    "static": np.tril(np.ones((T, S), bool)) & ~((np.arange(S) == 2) & (np.arange(S) <= np.arange(T)[:, None] + 2)),
    "padding": np.tril(np.ones((T, S), bool)) & (np.arange(S) < LENGTH),
    "bias": RULE,
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks that are skipped, cut and whole, neither dividing its length."""
    sizes = (Schedule(1, 4, 3, 0), Schedule(1, 3, 4, 0))
    monkeypatch.setattr("jaxattn.core.blockwise.schedules", lambda problem: sizes)


def draw(name, length=T):
    rng = generator(name)
    shapes = ((length, N, H), (S, K, H), (S, K, V), (length, N, V))
    return [rng.normal(size=shape) for shape in shapes]


@IMPLEMENTATIONS
@pytest.mark.parametrize("kind", MASKS)
def test_what_a_blocked_key_holds_has_no_influence(kind, implementation):
    q, k, v, cotangent = draw(kind)
    allowed = ALLOWED[kind]

    def results(q, k, v):
        def attend(q, k, v):
            return dot_product_attention(q, k, v, implementation=implementation, **MASKS[kind]()).output

        output, pull = jax.vjp(attend, q, k, v)
        return output, *pull(jnp.asarray(cotangent, output.dtype))

    with jax.enable_x64(True):
        run = quickly(results)
        clean = run(q, k, v)
        blocked, late = ~allowed.any(0), np.arange(S) == LATE
        for bad in (np.nan, np.inf, -np.inf):
            poisoned = [np.where(blocked[:, None, None], bad, array) for array in (k, v)]
            if kind == "bias":  # NaN − ∞ is NaN in every formula: an additive mask hides values, not keys
                poisoned[0] = k
            assert_close(run(q, *poisoned), clean)
            # A value that some queries attend to: the others don't see it, nor do the gradients of other keys.
            meets = allowed[:, LATE]
            output, d_q, d_k, d_v = run(q, k, np.where(late[:, None, None], bad, v))
            assert_close((output[~meets], d_q[~meets]), (clean[0][~meets], clean[1][~meets]))
            assert not np.isfinite(output[meets]).any() and not np.isfinite(d_q[meets]).any()
            unseen = ~allowed[meets].any(0)
            assert_close((d_k[unseen], d_v), (clean[2][unseen], clean[3]))
            # NaN where ∞ · q has no sign of its own
            output, d_q, d_k, d_v = run(q, np.where(late[:, None, None], np.nan, k), v)
            if kind != "bias":
                assert_close((output[~meets], d_q[~meets]), (clean[0][~meets], clean[1][~meets]))
                assert_close((d_k[unseen], d_v[unseen]), (clean[2][unseen], clean[3][unseen]))
                assert np.isnan(output[meets]).all() and np.isnan(d_q[meets]).all()


def assert_close(got, expected):
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@IMPLEMENTATIONS
def test_an_infinite_key_that_is_attended_to_weighs_as_in_torch(implementation):
    """A logit of −∞ is a weight of 0, one of +∞ is NaN."""
    q, k, v, _ = draw("infinite key")
    k[3, 0, 1] = np.inf
    mask = np.tril(np.ones((T, S), bool))
    q_, k_, v_ = (torch.from_numpy(x).transpose(0, 1) for x in (q, k, v))
    theirs = F.scaled_dot_product_attention(q_, k_, v_, attn_mask=torch.from_numpy(mask), enable_gqa=True)
    theirs = theirs.transpose(0, 1).numpy()
    with jax.enable_x64(True):
        ours = dot_product_attention(q, k, v, mask=mask, implementation=implementation).output
    np.testing.assert_allclose(ours[3:], theirs[3:], rtol=1e-12, atol=1e-12)
    assert np.isfinite(ours[:3]).all()
    assert 0 < np.isnan(theirs[3:, :2]).sum() < theirs[3:, :2].size


@IMPLEMENTATIONS
@pytest.mark.parametrize("size", [1e10, 1e18])
def test_huge_logits_have_finite_gradients_as_in_torch(implementation, size):
    rng = generator("huge")
    q, k, v, cotangent = (rng.normal(size=(300, 2, 8)).astype(np.float32) for _ in range(4))
    q *= size
    q_, k_, v_ = theirs = [torch.from_numpy(x).transpose(0, 1).requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(q_, k_, v_)
    output.backward(torch.from_numpy(cotangent).transpose(0, 1))
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in theirs)
    attend = partial(dot_product_attention, implementation=implementation)
    ours = jax.jit(lambda *a: jax.vjp(lambda *b: attend(*b).output, *a)[1](jnp.asarray(cotangent)))(q, k, v)
    weights = jax.jit(lambda *a: attend(*a, return_weights=True).weights)(q, k, v)
    assert all(np.isfinite(x).all() for x in (*ours, weights))


@IMPLEMENTATIONS
@pytest.mark.parametrize("mode", ["debug_nans", "debug_infs"])
@pytest.mark.parametrize("empty_row", ["zero", "uniform"])
def test_a_query_with_nothing_to_attend_meets_neither_nan_nor_infinity_on_the_way(implementation, mode, empty_row):
    q, k, v, cotangent = (array.astype(np.float32) for array in draw("eager"))
    mask = RULE.copy()
    mask[4] = False

    def attend(*arrays):
        options = {"mask": mask, "empty_row": empty_row, "implementation": implementation}
        return dot_product_attention(*arrays, return_weights=implementation == "dense", **options)

    with MODES[mode]():
        output, pull = jax.vjp(lambda *a: attend(*a).output, q, k, v)
        assert all(np.isfinite(x).all() for x in (output, *pull(jnp.asarray(cotangent))))
