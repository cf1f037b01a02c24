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


@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda options: words(options, OPTIONS))
def test_as_torch(options):
    assert problems(signature(options), DRAWS) == []
