"""What a check is, and how it reads weights off an output and words what came."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .target import Answer, Request

Attend = Callable[[Request], Answer]


class Finding(NamedTuple):
    """Whether it is as expected, and what came in few words, empty where that says nothing more."""

    ok: bool
    came: str = ""


@dataclass(frozen=True)
class Check:
    """One question to a library.

    Attributes:
        id: its name.
        question: in one line.
        expected: the answer of a conforming library, in few words.
        find: asks and judges.
        float64: runs with 64-bit types on.
    """

    id: str
    question: str
    expected: str
    find: Callable[[Attend], Finding]
    float64: bool = False


def equal_logits(
    length_q: int = 3, length_kv: int = 3, *, batch: int = 1, heads: int = 1, dtype: Any = np.float32
) -> dict[str, Any]:
    """q, k, v with all logits 0 and the identity as values, so that an output row is the row of weights."""
    width = length_kv
    identity = np.broadcast_to(np.eye(width)[:, None], (batch, width, heads, width))
    arrays = {"q": np.zeros((batch, length_q, heads, width)), "k": np.zeros(identity.shape), "v": identity}
    return {name: jnp.asarray(array.astype(dtype)) for name, array in arrays.items()}


def rows(answer: Answer) -> np.ndarray:
    """The output as [*B, N, T, V]: the weights, where the values are the identity."""
    return np.moveaxis(np.asarray(answer.output).astype(np.float64), -2, -3)


def normalised(shares: Any) -> np.ndarray:
    """Rows of shares made to sum to 1; a row of zeros stays."""
    shares = np.asarray(shares, np.float64)
    total = shares.sum(axis=-1, keepdims=True)
    return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)


def judged(
    came: np.ndarray, expected: Any, otherwise: Mapping[str, Any] | None = None, *, tolerance: float = 1e-6
) -> Finding:
    """Whether that came, and if not which of the known other answers did.

    Args:
        came: from the library.
        expected: by hand; broadcast to it.
        otherwise: what else could come → its values.
        tolerance: largest difference.
    """
    if _near(came, expected, tolerance):
        return Finding(True)
    for name, values in (otherwise or {}).items():
        if _near(came, values, tolerance):
            return Finding(False, name)
    return Finding(False, numbers(came))


def _near(came: np.ndarray, values: Any, tolerance: float) -> bool:
    try:
        values = np.broadcast_to(np.asarray(values, np.float64), came.shape)
    except ValueError:
        return False
    return np.allclose(came, values, rtol=0, atol=tolerance, equal_nan=True)


def numbers(values: np.ndarray) -> str:
    """All of them if they are few, the first otherwise."""
    flat = np.asarray(values, np.float64).reshape(-1)
    text = " ".join(f"{value:.3g}" for value in flat[:6])
    return text if flat.size <= 6 else f"{text} …"
