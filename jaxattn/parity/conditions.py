"""What every proof needs, and what it ran under."""

from typing import Any

import jax
from flax import nnx

from ..conditions import package_version
from .flax_side import check_deterministic
from .torch_side import device_of


def check_modules(torch_module: Any, flax_module: Any) -> None:
    """A torch module and a Flax module, in this order, the latter without active dropout of its own.

    Raises:
        TypeError: something else.
        ValueError: nnx.Dropout is active.
        ImportError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError('Parity needs torch: pip install "jaxattn[torch]".') from error
    if not isinstance(torch_module, torch.nn.Module) or not isinstance(flax_module, nnx.Module):
        raise TypeError(
            "Parity takes a torch.nn.Module and then a flax nnx.Module, got "
            f"{type(torch_module).__name__} and {type(flax_module).__name__}."
        )
    check_deterministic(flax_module)


def devices(torch_module: Any) -> dict[str, str]:
    """Where each side runs."""
    return {"torch": str(device_of(torch_module)), "jax": jax.devices()[0].device_kind}


def versions(*further: str) -> dict[str, str]:
    """Of everything that computes, and of `further` packages."""
    packages = ("jaxattn", "jax", "jaxlib", "flax", "torch", "numpy", *further)
    return {package: package_version(package) or "unknown" for package in packages}
