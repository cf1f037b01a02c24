"""The Transformer classes against torch.nn's: at least 100 random draws of each, over structural signatures."""

import pytest

from .covering import all_on_or_off, on_or_off, words
from .drawing import problems
from .stacks import COMBINATIONS, OPTIONS, SETTINGS, signature

DRAWS = 17
SIGNATURES = [
    pytest.param(name, combination, id=f"{name}, {words(combination, OPTIONS[name])}")
    for name, combinations in COMBINATIONS.items()
    for combination in combinations
]

pytestmark = pytest.mark.filterwarnings(
    "ignore:Support for mismatched .*key_padding_mask and .*mask", "ignore:enable_nested_tensor is True"
)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_drawn_with_and_without_every_other_one(name):
    combinations, options = COMBINATIONS[name], OPTIONS[name]
    assert len(combinations) >= 6 and len({str(c) for c in combinations}) == len(combinations)
    assert len(combinations) * DRAWS >= 100
    for option, values in {**options, **SETTINGS}.items():
        assert {str(c[option]) for c in combinations} == {str(value) for value in values}
    assert on_or_off(combinations, options) == all_on_or_off(options)


@pytest.mark.parametrize(("name", "options"), SIGNATURES)
def test_as_torch(name, options):
    assert problems(signature(name, options), DRAWS) == []
