"""Modules with every weight random, and NumPy inputs, from fixed seeds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ..inputs import generator, randomise


@pytest.fixture
def randomised() -> Callable[..., Any]:
    """randomised(module, dtype=None): in eval mode, every parameter random."""

    def prepare(module: torch.nn.Module, dtype: torch.dtype | None = None) -> torch.nn.Module:
        return randomise(module, type(module).__name__).to(dtype)

    return prepare


@pytest.fixture
def draw() -> Callable[..., np.ndarray]:
    """draw(*shape): standard normal float32, other numbers at every call."""
    rng = generator("parity")
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)
