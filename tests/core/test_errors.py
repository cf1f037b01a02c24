"""Bad input to the operation: one sentence with what must hold, what came, what to do."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import dot_product_attention, masks

from ..errors import refuses
from ..inputs import B, H, K, S, T, V

Q, KEYS, VALUES = np.ones((B, T, 2 * K, H)), np.ones((B, S, K, H)), np.ones((B, S, K, V))

BAD = [
    ("head width", ValueError, "same head width", (Q[..., :-1], KEYS, VALUES), {}),
    ("head count", ValueError, "multiple of the heads", (Q[..., :3, :], KEYS, VALUES), {}),
    (
        "torch's layout",
        ValueError,
        "swap axes -3 and -2",
        (np.ones((B, 2, T, H)), np.ones((B, 3, S, H)), np.ones((B, 3, S, V))),
        {},
    ),
    ("lengths", ValueError, "same length and heads", (Q, KEYS[:, :-1], VALUES), {}),
    ("batch", ValueError, "batch axes", (Q[:-1], KEYS, VALUES), {}),
    ("rank", ValueError, r"must be \[\*B, length, heads, width\]", (np.ones((T, H)), KEYS, VALUES), {}),
    ("integers", TypeError, "`q` must be a floating-point array", (Q.astype(int), KEYS, VALUES), {}),
    ("float mask", TypeError, "pass an additive float mask as `bias`", (Q, KEYS, VALUES), {"mask": np.ones((T, S))}),
    (
        "mask shape",
        ValueError,
        r"\(..., N, T, S\) = \(3, 4, 5, 7\), got shape \(3, 7\)",
        (Q, KEYS, VALUES),
        {"mask": np.ones((B, S), bool)},
    ),
    ("mask rank", ValueError, "must broadcast", (Q, KEYS, VALUES), {"mask": np.ones((1, 1, 1, 1, S), bool)}),
    ("bias shape", ValueError, "`bias` must broadcast", (Q, KEYS, VALUES), {"bias": np.ones((S, T))}),
    ("bool bias", TypeError, "`bias` must be a floating-point", (Q, KEYS, VALUES), {"bias": np.ones((T, S), bool)}),
    (
        "policy",
        ValueError,
        "`empty_row` must be one of 'zero', 'uniform', 'nan'",
        (Q, KEYS, VALUES),
        {"empty_row": "one"},
    ),
    ("implementation", ValueError, "`implementation` must be one of", (Q, KEYS, VALUES), {"implementation": "fast"}),
    ("rate", ValueError, r"rate in \[0, 1\), got 1.0", (Q, KEYS, VALUES), {"dropout_rate": 1.0}),
    ("no randomness", ValueError, "needs `dropout_rng` or `dropout_mask`", (Q, KEYS, VALUES), {"dropout_rate": 0.5}),
]


@pytest.mark.parametrize(("error", "sentence", "inputs", "options"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(error, sentence, inputs, options):
    with refuses(error, sentence):
        dot_product_attention(*inputs, **options)


def with_mask(make):
    return lambda: dot_product_attention(Q, KEYS, VALUES, mask=make())


def with_score(score_mod):
    return lambda: dot_product_attention(Q, KEYS, VALUES, score_mod=score_mod)


IDS = np.zeros((B, S), int)
NUMBER: Any = 3
BAD_PARTS = {
    "predicate of floats": (TypeError, "`fn` must return one boolean", with_mask(lambda: masks.from_predicate(gap))),
    "predicate of many": (
        TypeError,
        r"one boolean.*got dtype bool of shape \(2,\)",
        with_mask(lambda: masks.from_predicate(lambda b, n, i, j: jnp.array([i, j]) > 0)),
    ),
    "predicate": (
        TypeError,
        r"`fn` must be a function fn\(b, n, i, j, \*arrays\)",
        with_mask(lambda: masks.from_predicate(NUMBER)),
    ),
    "long": (
        ValueError,
        f"between 0 and the key length S = {S}, got .* to 9",
        with_mask(lambda: masks.padding([1, 9, 2])),
    ),
    "negative": (ValueError, "`lengths` must lie between 0", with_mask(lambda: masks.padding([1, -1, 2]))),
    "lengths of others": (
        ValueError,
        r"`lengths` must be \[\*B\].*got shape \(2,\)",
        with_mask(lambda: masks.padding([1, 2])),
    ),
    "lengths of floats": (TypeError, "`lengths` must hold integers", with_mask(lambda: masks.padding([1.0, 2.0, 3.0]))),
    "query ids": (
        ValueError,
        rf"`q_ids` must be .*{T}.*got shape \({B}, {S}\)",
        with_mask(lambda: masks.segments(IDS)),
    ),
    "key ids": (
        ValueError,
        rf"`kv_ids` must be .*{S}.*got shape \({B}, {T}\)",
        with_mask(lambda: masks.segments(IDS[:, :T], IDS[:, :T])),
    ),
    "float array": (
        TypeError,
        "pass an additive float mask as `bias`",
        with_mask(lambda: masks.from_array(np.ones((T, S)))),
    ),
    "array in a combination": (
        ValueError,
        r"`mask` must broadcast.*\(3, 4, 5, 7\), got shape \(7, 5\)",
        with_mask(lambda: masks.causal() & np.ones((S, T), bool)),
    ),
    "bias": (
        ValueError,
        r"`bias` must broadcast.*\(3, 4, 5, 7\), got shape \(2, 5, 7\)",
        lambda: dot_product_attention(Q, KEYS, VALUES, bias=np.ones((2, T, S))),
    ),
    "score": (TypeError, "`score_mod` must be a function", with_score(1.5)),
    "score of many": (
        ValueError,
        r"one number.*got shape \(2,\)",
        with_score(lambda logit, b, n, i, j: jnp.stack([logit] * 2)),
    ),
    "score of integers": (
        TypeError,
        "floating-point logit, got dtype int32",
        with_score(lambda logit, b, n, i, j: i - j),
    ),
    "block": (
        ValueError,
        "`implementation` must be one of .*'dense'.*'blockwise'",
        lambda: dot_product_attention(Q, KEYS, VALUES, implementation="flash"),
    ),
}


def gap(b, n, i, j):
    return (i - j) * 0.5


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_masks_and_functions(name):
    error, sentence, call = BAD_PARTS[name]
    with refuses(error, sentence):
        call()


@pytest.mark.parametrize("implementation", ["dense", "blockwise", "auto"])
@pytest.mark.parametrize("shape", [(0, T, S), (B, 0, S), (B, T, 0)])
@pytest.mark.parametrize(("policy", "value"), [("zero", 0.0), ("uniform", 0.0), ("nan", np.nan)])
def test_sizes_of_zero(implementation, shape, policy, value):
    """Without keys every row is empty, and so the policy's; without queries or examples there is no row."""
    b, t, s = shape
    inputs = (np.ones((b, t, 2 * K, H), np.float32), np.ones((b, s, K, H)), np.ones((b, s, K, V)))
    found = dot_product_attention(*inputs, empty_row=policy, implementation=implementation, return_weights=True)
    assert found.output.shape == (b, t, 2 * K, V) and found.weights.shape == (b, 2 * K, t, s)
    assert found.output.dtype == np.float32
    assert np.array_equal(found.output, np.full(found.output.shape, value), equal_nan=True)
