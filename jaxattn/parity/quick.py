"""Programs that run a few times and prove algebra: compiled fast, not well."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

#: Without LLVM's optimisation and XLA's newer code generator a decoder layer with gradients compiles 7 times faster.
_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """jax.jit for float64, where no rounding is judged; what rounding is judged by is compiled as users compile it."""
    return jax.jit(function, compiler_options=_known_options())


@cache
def _known_options() -> dict[str, Any]:
    """Those that this XLA has: they are no part of JAX's interface."""
    return {name: value for name, value in _OPTIONS.items() if _is_known(name, value)}


def _is_known(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options={name: value})(0)
    except Exception:  # XLA's own error type; another reason to fail would show without the option, too
        return False
    return True
