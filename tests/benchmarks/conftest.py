"""Suites are tested without our faster implementations, whose compilation would be most of the time."""

import pytest

from benchmarks import systems

ONCE = {"rounds": 1, "min_block_s": 0.0, "sleep_s": 0.0}


@pytest.fixture
def dense(monkeypatch):
    """Ours is the dense implementation, with masks as arrays; nothing is compiled a second time to time that."""
    monkeypatch.setattr(systems, "compile_time", lambda function, *given: 0.25)
    monkeypatch.setattr(systems, "causal_mask", lambda point: point.mask())
    monkeypatch.setitem(systems.JAX_SYSTEMS, systems.OURS, systems.JAX_SYSTEMS[systems.DENSE])


@pytest.fixture
def once(monkeypatch):
    """Suites time one call a system."""
    for suite in ("op", "overhead", "minilm", "module"):
        monkeypatch.setattr(f"benchmarks.{suite}.QUICK", ONCE)
