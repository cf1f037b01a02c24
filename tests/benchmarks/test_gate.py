"""The float64 reference against torch's, and what the gate lets through."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gate import Part, check, exact_part, exact_parts
from benchmarks.grid import Point
from jaxattn.timing import ParityFailure

POINT = Point(2, 6, 3, 5, 7, 11)


def torch_results(point: Point, mask: np.ndarray | None) -> list[np.ndarray]:
    """Output, dq, dk, dv in float64 by torch."""
    inputs: list[Any] = [torch.from_numpy(array).double() for array in point.arrays()]
    cotangent = inputs.pop()
    for tensor in inputs:
        tensor.requires_grad_()
    given = None if mask is None else torch.from_numpy(mask)
    heads_first = (tensor.transpose(1, 2) for tensor in inputs)
    output = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=given, enable_gqa=True)
    output = output.transpose(1, 2)
    output.backward(cotangent)
    return [tensor.detach().numpy() for tensor in (output, *(tensor.grad for tensor in inputs))]


def empty_row() -> np.ndarray:
    mask = np.random.default_rng(0).random((5, 7)) > 0.4
    mask[2] = False
    return mask


@pytest.mark.parametrize("mask", [None, np.tri(5, 7, dtype=bool), empty_row()], ids=["full", "causal", "empty row"])
def test_the_reference_is_attention_and_its_gradients(mask):
    expected = torch_results(POINT, mask)
    for place in ((0, 0), (1, 2)):
        part = exact_part(POINT.arrays(), place, mask, backward=True)
        for ours, theirs in zip(part.results, part.of(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_without_gradients_only_the_output_is_computed():
    parts = exact_parts(POINT, POINT.arrays(), backward=False)
    assert [(part.example, part.kv_head) for part in parts] == [(0, 0), (1, 1)]
    assert all(len(part.results) == 1 for part in parts)


def test_right_results_pass_with_their_errors():
    results = torch_results(POINT, None)
    results[2] = results[2] * (1 + 1e-6)
    errors = check("right", results, exact_parts(POINT, POINT.arrays(), backward=True))
    assert list(errors) == ["output", "dq", "dk", "dv"]
    assert errors["output"] < 1e-14 and 1e-7 < errors["dk"] <= 1e-6


def test_heads_tiled_instead_of_repeated_are_caught():
    point = Point(1, 32, 8, 4, 4, 3)
    results = torch_results(point, None)[:1]
    q, k, v, _ = point.arrays()
    tiled = Point(1, 32, 32, 4, 4, 3)
    wrong = [
        exact_part([q, np.tile(k, (1, 1, 4, 1)), np.tile(v, (1, 1, 4, 1)), q], (0, n), None, backward=False)
        for n in range(32)
    ]
    output = np.stack([part.results[0][:, 0] for part in wrong], axis=1)[None]
    assert output.shape == results[0].shape and tiled.heads == 32
    parts = exact_parts(point, point.arrays(), backward=False)
    check("repeated", results, parts)
    with pytest.raises(ParityFailure):
        check("tiled", [output], parts)


@pytest.mark.parametrize("damage", ["value", "nan", "shape"])
def test_wrong_results_fail(damage):
    results = [array.copy() for array in torch_results(POINT, None)]
    if damage == "shape":
        results[0] = results[0][:, :-1]
    else:
        results[3][1, 2, 1, 0] += 1.0 if damage == "value" else np.nan
    with pytest.raises(ParityFailure) as failure:
        check("wrong", results, exact_parts(POINT, POINT.arrays(), backward=True))
    assert "wrong" in failure.value.report and ("shapes" if damage == "shape" else "dv differs") in failure.value.report


def test_a_part_picks_the_query_heads_of_its_kv_head():
    whole = np.arange(2 * 5 * 6 * 11).reshape(2, 5, 6, 11)
    [picked] = Part(1, 2, (np.zeros((5, 2, 11)),)).of([whole])
    assert (picked == whole[1, :, 4:6]).all()
