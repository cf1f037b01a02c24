"""What a proof switches in torch and in JAX while it runs: the one place that does."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import jax

from .._switching import Setting, Switches, twice

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
    with contextlib.ExitStack() as stack:
        stack.enter_context(_switches.held((fast_path, precision)))
        for context in (
            partial(torch.inference_mode, False),
            torch.enable_grad,
            partial(torch.autocast, device_type, enabled=False),
        ):
            stack.enter_context(twice(context))
        yield


#: One object each, which `is` tells apart.
_PRECISIONS = {name: name for name in ("highest", "high", "medium")}


def float64_types() -> contextlib.AbstractContextManager[None]:
    """64-bit types on in JAX, in this thread."""
    return twice(partial(jax.enable_x64, True))


def highest_precision() -> contextlib.AbstractContextManager[None]:
    """JAX's matrix products without reduced precision, in this thread."""
    return twice(partial(jax.default_matmul_precision, "highest"))
