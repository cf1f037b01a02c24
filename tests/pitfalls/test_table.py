"""Every pitfall of the list is tested, or says why it doesn't apply."""

import ast
from pathlib import Path

import pytest

from .table import PITFALLS

TESTS = Path(__file__).parent.parent
IDS = """
A01 A02 A03 A04 A06 A07 A09 A10 A11 A13 A14 A15 A16 A18 A19 A21 A23 A24 A25 B01 B02 B04 B05 B06
C01 C02 C03 C27 C28 C29 C30 C31 C32 D01 D02 D03 D04 D05 D07 D08 D09 D10 D11
"""


def test_the_list_is_complete():
    assert list(PITFALLS) == IDS.split()


@pytest.mark.parametrize("name", PITFALLS)
def test_its_tests_exist(name):
    pitfall = PITFALLS[name]
    assert bool(pitfall.tests) != bool(pitfall.reason)
    for node in pitfall.tests:
        path, function = node.split("::")
        body = ast.parse((TESTS / path).read_text()).body
        found = {part.name: ast.get_docstring(part) for part in body if isinstance(part, ast.FunctionDef)}
        assert function in found
        if path.startswith("pitfalls/"):
            assert name in (found[function] or "")
