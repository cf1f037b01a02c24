"""Every oracle test draws from its own fixed seed and leaves torch's global generator and settings as they were."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20170612)
        yield
