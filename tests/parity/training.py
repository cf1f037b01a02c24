"""A small module, data and optimizers for training on both sides."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from torch import nn

import jaxattn

from ..inputs import generator

B, F, G = 3, 7, 5
STEPS = 4
DATA = generator("training").standard_normal((STEPS, B, F))


def linear(randomised) -> tuple[Any, Any]:
    """A layer of torch and its twin."""
    module = randomised(nn.Linear(F, G))
    return module, jaxattn.from_torch(module)


def sgd(**options) -> Callable[..., Any]:
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, **options)


def adam(**options) -> Callable[..., Any]:
    return lambda parameters: torch.optim.Adam(parameters, lr=0.01, **options)


def adamw(**options) -> Callable[..., Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.01, **options)


def halving(step):
    return 0.5**step


def from_step(count: int, before: float, after: float) -> Callable[[Any], Any]:
    return lambda step: jnp.where(step < count, before, after)
