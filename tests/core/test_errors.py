"""Bad input to the operation: one sentence with what must hold, what came, what to do."""

import numpy as np
import pytest

from jaxattn import dot_product_attention

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
