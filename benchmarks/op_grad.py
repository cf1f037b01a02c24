"""The attention operation with its gradients: output, dq, dk and dv in one call, over the grid of `op`."""

from .op import run


def main(argv: list[str]) -> int:
    """0, or 1 if ours differs from float64 (nothing is written then) or a full run misses a target."""
    return run("op_grad", __doc__, argv, backward=True)
