"""Which output belongs to which."""

from typing import NamedTuple

import numpy as np
import pytest

from jaxattn.parity.outputs import flatten_result, pair

A, W = np.zeros((3, 5)), np.zeros((3, 7))


class Result(NamedTuple):
    output: np.ndarray | None
    weights: object = None


class Swapped(NamedTuple):
    weights: np.ndarray
    output: np.ndarray


def paired(theirs, ours):
    return pair(flatten_result(theirs), flatten_result(ours))


@pytest.mark.parametrize(
    ("theirs", "ours", "names", "order"),
    [
        (A, A, ["output"], [0]),
        (A, Result(A), ["output"], [0]),
        ((A, None), Result(A), ["output"], [0]),
        ((A, W), Result(A, W), ["output", "weights"], [0, 1]),
        ((A, W), (A, W), ["output[0]", "output[1]"], [0, 1]),
        (Result(A, W), Swapped(W, A), ["output", "weights"], [1, 0]),
        ({"output": A, "weights": (W, W)}, Result(A, (W, W)), ["output", "weights[0]", "weights[1]"], [0, 1, 2]),
        (Result(A, W), (A, W), ["output", "weights"], [0, 1]),
    ],
)
def test_pairs(theirs, ours, names: list[str], order: list[int]) -> None:
    assert paired(theirs, ours) == (names, order)


def test_a_model_output_pairs_by_name() -> None:
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    class Ours(NamedTuple):
        pooler_output: np.ndarray
        last_hidden_state: np.ndarray

    theirs = BaseModelOutputWithPooling(last_hidden_state=torch.zeros(3, 5), pooler_output=torch.zeros(3, 7))  # pyright: ignore[reportArgumentType] -- its annotation names an old alias
    assert paired(theirs, Ours(W, A)) == (["last_hidden_state", "pooler_output"], [1, 0])


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (A, (A, W), r"from torch output \(3, 5\), from Flax \[0\] \(3, 5\), \[1\] \(3, 7\)"),
        ((A, None), Result(A, W), r"from Flax output \(3, 5\), weights \(3, 7\)"),
        ({"hidden": A}, Result(A), r"from torch hidden \(3, 5\), from Flax output \(3, 5\)"),
        ((A, W), Result(W, A), r"`output` torch \(3, 5\), Flax \(3, 7\); `weights` torch \(3, 7\), Flax \(3, 5\)"),
        (None, A, "from torch nothing"),
    ],
)
def test_what_does_not_pair(theirs, ours, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired(theirs, ours)


def test_other_objects_are_named_not_compared() -> None:
    assert flatten_result({"output": A, "cache": object(), "loss": None}).ignored == ("cache (object)",)
