"""Any options and any sizes, each signature with a dozen draws: `pytest -m sweep tests/torch_nn`, for some minutes."""

import numpy as np
import pytest

from . import multihead, stacks
from .covering import drawn_combination
from .drawing import problems

SIGNATURES, DRAWS = 60, 12
CLASSES = ("MultiheadAttention", *stacks.OPTIONS)

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.filterwarnings("ignore:Support for mismatched", "ignore:enable_nested_tensor is True"),
]


def drawn_signature(name: str, rng: np.random.Generator):
    batch, length_q, length_kv, hidden, kdim, vdim = (int(size) for size in rng.integers(1, 10, size=6))
    # A norm over a handful of features is so badly conditioned that chance decides whose float32 is nearer.
    narrowest = 1 if name == "MultiheadAttention" else 8
    heads = {"heads": (int(rng.integers(1, 5)), narrowest + int(rng.integers(8)))}
    if name == "MultiheadAttention":
        while not multihead.allowed(options := drawn_combination(multihead.OPTIONS, rng)):
            pass
        return multihead.signature({**options, **heads}, multihead.Sizes(batch, length_q, length_kv, kdim, vdim))
    options = drawn_combination({**stacks.SETTINGS, **stacks.OPTIONS[name]}, rng)
    return stacks.signature(name, {**options, **heads}, stacks.Sizes(batch, length_q, length_kv, hidden))


@pytest.mark.parametrize("number", range(SIGNATURES))
@pytest.mark.parametrize("name", CLASSES)
def test_as_torch(name, number):
    rng = np.random.default_rng([CLASSES.index(name), number])
    assert problems(drawn_signature(name, rng), DRAWS) == []
