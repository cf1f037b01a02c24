"""The grid is the fixed one, and what a point says of itself is right."""

import numpy as np
import pytest

from benchmarks.grid import GRID, TINY, Point, series

SHAPES = [
    "B1 N8 T128 H64",
    "B8 N8 T128 H64",
    "B1 N8 T512 H64",
    "B4 N12 T512 H64",
    "B1 N8 T2048 H64",
    "B1 N8 T4096 H64",
    "B2 N16 T1024 H128",
    "B1 N4 T333 H80",
    "B1 N32 K8 T1024 H64",
    "B8 N12 T1 S1024 H64",
]


def test_the_grid_is_fixed():
    assert [point.label for point in GRID] == [f"{shape} {kind}" for shape in SHAPES for kind in ("full", "causal")]


def test_operations_count_the_blocked_half():
    full, causal = Point(2, 4, 2, 5, 7, 11), Point(2, 4, 2, 5, 7, 11, causal=True)
    assert full.products == causal.products == 2 * (2 * 4 * 5 * 7 * 11) * 2  # two products, multiply and add


def test_square_causal_is_top_left_and_decoding_blocks_nothing():
    mask = Point(1, 1, 1, 3, 5, 8, causal=True).mask()
    assert mask is not None and mask.astype(int).tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    decoding = Point(1, 1, 1, 1, 5, 8, causal=True)
    assert decoding.offset == 4 and not decoding.blocks and decoding.mask() is None
    assert Point(1, 1, 1, 3, 5, 8).mask() is None


@pytest.mark.parametrize("point", [*TINY, GRID[0]], ids=lambda point: point.label)
def test_arrays_are_contiguous_and_the_same_every_time(point):
    first, again = point.arrays(), point.arrays()
    queries = (point.batch, point.length, point.heads, point.width)
    keys = (point.batch, point.kv_length, point.kv_heads, point.width)
    assert [array.shape for array in first] == [queries, keys, keys, queries]
    for one, other in zip(first, again, strict=True):
        assert one.dtype == np.float32 and one.flags.c_contiguous and (one == other).all()


def test_a_series_differs_in_its_length_alone():
    assert {point.length for point in series(GRID)} == {128, 512, 2048, 4096}
    assert {point.shape_label.replace(str(point.length), "") for point in series(GRID)} == {"B1 N8 T H64"}
