"""MultiheadAttention against torch.nn's: 312 random draws over 24 structural signatures."""

import pytest

from .covering import all_on_or_off, on_or_off, words
from .drawing import problems
from .multihead import COMBINATIONS, OPTIONS, signature

DRAWS = 13

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")


def test_every_option_is_drawn_with_and_without_every_other_one():
    assert len(COMBINATIONS) >= 24 and len({str(options) for options in COMBINATIONS}) == len(COMBINATIONS)
    assert len(COMBINATIONS) * DRAWS >= 300
    for name, values in OPTIONS.items():
        assert {options[name] for options in COMBINATIONS} == set(values)
    assert on_or_off(COMBINATIONS, OPTIONS) == all_on_or_off(OPTIONS)


def test_a_difference_is_seen():
    """A bias that is off by 1e-6."""

    def spoil(twin):
        twin.out_proj.bias[...] += 1e-6

    found = problems(signature(COMBINATIONS[0]), 3, spoil)
    assert any("float64" in problem and "output 0" in problem for problem in found)
    assert any("float32" in problem and "output 0" in problem for problem in found)


@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda options: words(options, OPTIONS))
def test_as_torch(options):
    assert problems(signature(options), DRAWS) == []
