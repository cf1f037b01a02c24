"""Proof that a PyTorch module and its Flax twin compute the same thing."""

from .compare import compare as compare
from .report import ParityReport as ParityReport
