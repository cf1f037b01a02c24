"""Commands under test are quiet, however long they take."""

import pytest

from jaxattn.cli import terminal


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    """Standard error of a test is no terminal: it would get a line every ten seconds."""
    monkeypatch.setattr(terminal, "INTERVAL", 1e6)
