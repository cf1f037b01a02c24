"""Rules: each transform forward and back, bit for bit, on labelled tensors."""

import ml_dtypes
import numpy as np
import pytest

from jaxattn.convert.rules import IDENTITY, TRANSPOSE, Pack, Rule

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int64]


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("transform", "shapes"),
    [(IDENTITY, [(3, 5)]), (TRANSPOSE, [(3, 5)]), (TRANSPOSE, [(2, 3, 5)]), (Pack(3), [(4, 5)] * 3)],
)
def test_backward_undoes_forward(transform, shapes, dtype):
    rng = np.random.default_rng(0)
    width = np.dtype(dtype).itemsize
    sources = [rng.integers(0, 256, (*s[:-1], s[-1] * width), np.uint8).view(dtype) for s in shapes]
    target = transform.forward(sources)
    assert [tuple(source.shape) for source in sources] == list(transform.source_shapes(target.shape))
    back = transform.backward(target)
    assert [bits(source) for source in sources] == [bits(array) for array in back]
    assert all(array.flags.c_contiguous for array in [target, *back])


def test_a_linear_weight_is_transposed_even_when_square():
    weight = np.arange(16.0).reshape(4, 4)
    assert np.array_equal(TRANSPOSE.forward([weight]), weight.T)


def test_packed_rows_are_q_then_k_then_v():
    parts = [np.full((2, 3), role) for role in (0.0, 1.0, 2.0)]
    assert Pack(3).forward(parts)[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_result_never_shares_memory_with_the_source():
    for transform in (IDENTITY, TRANSPOSE):
        source = np.ones((3, 1), np.float32)
        assert not np.shares_memory(transform.forward([source]), source)
        assert not np.shares_memory(transform.backward(source)[0], source)


def test_a_rule_below_a_parent():
    rule = Rule(("weight",), "kernel", TRANSPOSE).under("layer.0.", "layers.0.")
    assert rule.sources == ("layer.0.weight",) and rule.target == "layers.0.kernel" and rule.transform is TRANSPOSE
