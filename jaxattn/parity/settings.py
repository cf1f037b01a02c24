"""What a proof switches in torch and in JAX while it runs: the one place that does."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from .._switching import Left, Setting, Switches, surely

_switches = Switches()


@contextmanager
def oracle_settings(device_type: str) -> Iterator[None]:
    """Gradients on; attention fast path, autocast and reduced matmul precision off; restored afterwards.

    The fast path and the matmul precision are the process's: while a run is inside, other threads have them so too.
    """
    import torch

    fast_path = Setting(
        "attention fast path",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
        lambda before: False,
    )
    precision = Setting(
        "matmul precision",
        lambda: _PRECISIONS[torch.get_float32_matmul_precision()],
        torch.set_float32_matmul_precision,
        lambda before: _PRECISIONS["highest"],
    )
    inference, gradients, autocast = torch.inference_mode(False), torch.enable_grad(), _WithoutAutocast(device_type)
    # In one statement: an interrupt must not change the order in which they are left.
    with (
        _switches.held((fast_path, precision)),
        inference,
        Left(inference),
        gradients,
        Left(gradients),
        Left(autocast),
        autocast,
    ):
        yield


class _WithoutAutocast:
    """As torch.autocast(enabled=False), which counts how often it is left."""

    def __init__(self, device_type: str):
        import torch

        self._device_type = device_type
        self._before = torch.is_autocast_enabled(device_type)

    def __enter__(self) -> None:
        import torch

        torch.set_autocast_enabled(self._device_type, False)

    def __exit__(self, *error: Any) -> None:
        import torch

        torch.set_autocast_enabled(self._device_type, self._before)


#: One object each, which `is` tells apart.
_PRECISIONS = {name: name for name in ("highest", "high", "medium")}


def float64_types() -> contextlib.AbstractContextManager[None]:
    """64-bit types on in JAX, in this thread."""
    return surely(jax.enable_x64(True))


def highest_precision() -> contextlib.AbstractContextManager[None]:
    """JAX's matrix products without reduced precision, in this thread."""
    return surely(jax.default_matmul_precision("highest"))
