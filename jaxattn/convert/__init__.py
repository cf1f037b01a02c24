"""Weights and live modules from PyTorch to Flax and back."""

from .registry import register as register
