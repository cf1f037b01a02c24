"""The kinds of masks, each beside its rule written out for one element."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import masks
from jaxattn.core.masks import Mask

from ..inputs import B, S, T

N = 2
SHAPE = (B, N, T, S)
LENGTHS = np.array([7, 0, 4])
PREFIXES = np.array([0, 6, 3])
Q_IDS = np.array([[0, 0, 1, 1, 2], [4, 4, 4, 4, 4], [2, 0, 2, 1, 0]])
KV_IDS = np.array([[0, 0, 0, 1, 1, 2, 3], [5, 5, 4, 4, 4, 6, 6], [0, 1, 2, 0, 1, 2, 2]])
ARRAY = np.random.default_rng(0).random(SHAPE) < 0.6
REACH = np.array([[1, 3], [0, 2], [5, 1]])  # [B, N]


class Kind(NamedTuple):
    mask: Mask
    rule: Callable[[int, int, int, int], bool]
    #: Whether the ranges are the tightest there are.
    tight: bool = False


def near(b, n, i, j, reach):
    return abs(i - j) <= reach[b, n]


KINDS = {
    "causal": Kind(masks.causal(), lambda b, n, i, j: j <= i, True),
    "causal, offset": Kind(masks.causal(S - T), lambda b, n, i, j: j <= i + 2, True),
    "causal, negative offset": Kind(masks.causal(-3), lambda b, n, i, j: j <= i - 3, True),
    "causal, far offset": Kind(masks.causal(2**40), lambda b, n, i, j: True, True),
    "causal, array": Kind(masks.causal(np.array(2)), lambda b, n, i, j: j <= i + 2, True),
    "causal, array each": Kind(masks.causal(LENGTHS - 3), lambda b, n, i, j: j <= i + (4, -3, 1)[b], True),
    "window": Kind(masks.sliding_window(2, 1), lambda b, n, i, j: i - 2 <= j <= i + 1, True),
    "window, self": Kind(masks.sliding_window(0, 0), lambda b, n, i, j: i == j, True),
    "window, left": Kind(masks.sliding_window(1, None), lambda b, n, i, j: i - 1 <= j, True),
    "window, right": Kind(masks.sliding_window(None, 2), lambda b, n, i, j: j <= i + 2, True),
    "window, neither": Kind(masks.sliding_window(None, None), lambda b, n, i, j: True, True),
    "window, offset": Kind(masks.sliding_window(1, 1, 2), lambda b, n, i, j: i + 1 <= j <= i + 3, True),
    "window, negative offset": Kind(masks.sliding_window(1, None, offset=-2), lambda b, n, i, j: i - 3 <= j, True),
    "window, far offset": Kind(masks.sliding_window(None, 2, offset=-(2**40)), lambda b, n, i, j: False, True),
    "moving window": Kind(masks.sliding_window(2, 0, np.array(3)), lambda b, n, i, j: i + 1 <= j <= i + 3, True),
    "moving window, each": Kind(
        masks.sliding_window(1, 2, LENGTHS - 3), lambda b, n, i, j: -1 <= j - i - (4, -3, 1)[b] <= 2, True
    ),
    "padding": Kind(masks.padding(LENGTHS), lambda b, n, i, j: j < LENGTHS[b], True),
    "padding, one": Kind(masks.padding(5), lambda b, n, i, j: j < 5, True),
    "prefix": Kind(masks.prefix(3), lambda b, n, i, j: j < 3 or j <= i, True),
    "prefix, array": Kind(masks.prefix(PREFIXES), lambda b, n, i, j: j < PREFIXES[b] or j <= i, True),
    "segments": Kind(masks.segments(Q_IDS, KV_IDS), lambda b, n, i, j: Q_IDS[b, i] == KV_IDS[b, j]),
    "segments, one": Kind(masks.segments(Q_IDS[2], KV_IDS[2]), lambda b, n, i, j: Q_IDS[2, i] == KV_IDS[2, j]),
    "array": Kind(masks.from_array(ARRAY), lambda b, n, i, j: ARRAY[b, n, i, j]),
    "array, heads": Kind(masks.from_array(ARRAY[0, :, :, :1]), lambda b, n, i, j: ARRAY[0, n, i, 0]),
    "array, keys": Kind(masks.from_array(ARRAY[:, :1, :1]), lambda b, n, i, j: ARRAY[b, 0, 0, j]),
    "array, (T, S)": Kind(masks.from_array(ARRAY[1, 1]), lambda b, n, i, j: ARRAY[1, 1, i, j]),
    "predicate": Kind(masks.from_predicate(near, REACH), lambda b, n, i, j: abs(i - j) <= REACH[b, n]),
}


def by_loops(rule: Callable[[int, int, int, int], bool], shape: tuple[int, int, int, int] = SHAPE) -> np.ndarray:
    """[B, N, T, S] from the rule of one element."""
    result = np.zeros(shape, bool)
    for b in range(shape[0]):
        for n in range(shape[1]):
            for i in range(shape[2]):
                for j in range(shape[3]):
                    result[b, n, i, j] = rule(b, n, i, j)
    return result


WHOLE = {name: by_loops(kind.rule) for name, kind in KINDS.items()}


EVERY = pytest.mark.parametrize("name", KINDS)


def whole(mask, batch=(B,)):
    array = mask.to_array(T, S, batch=batch, num_heads=N)
    assert array.dtype == jnp.bool_
    return np.broadcast_to(np.asarray(array), (*batch, N, T, S))


def example(mask, b):
    return mask.flatten_batch((B,)).at(b)
