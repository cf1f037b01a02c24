"""A float64 run of a torch module whose own casts to float32 are left out."""

from typing import Any

#: Operations that may be asked for a result of another dtype than their operand's.
_CASTING = ("_to_copy", "sum", "mean", "prod", "cumsum", "linalg_vector_norm")


class Widened:
    """A context in which what a forward pass casts from float64 to float32 stays float64, gradients included.

    What code computes in float32 on purpose is a choice of precision, not of value: without the casts it computes the
    same formula. Code that asks for a dtype and then does something else would not; a result of such a run is for that
    reason a truth only where another computation in float64 gives the same.
    """

    def __init__(self) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                del types
                kwargs = dict(kwargs or {})
                casts = func.overloadpacket.__name__ in _CASTING and kwargs.get("dtype") == torch.float32
                if casts and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
                    kwargs["dtype"] = torch.float64
                return func(*args, **kwargs)

        self._mode = Mode()

    def __enter__(self) -> "Widened":
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
