"""One convention in which every library is asked: a request, and what answers it."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


@dataclass(frozen=True)
class Request:
    """A call of attention, arrays as JAX has them.

    Attributes:
        q: queries [*B, T, N, H]; one batch axis unless a check is about that.
        k: keys [*B, S, K, H].
        v: values [*B, S, K, V].
        mask: for the library's mask argument, as it is: [B, N, T, S], where every size but T and S may be 1.
        bias: floating, to be added to the logits, [B, N, T, S] likewise.
        causal: by the library's own flag.
        window: (left, right) in tokens, by the library's own option: i − left ≤ j ≤ i + right.
        lengths: integers [B], by the library's own option: keys from there on are blocked.
        scale: factor of the logits; None is the library's default.
        dropout_rate: of the weights; positive is in training.
        seed: of the dropout.
        weights: whether the weights are asked for too.
    """

    q: Any
    k: Any
    v: Any
    mask: Any = None
    bias: Any = None
    causal: bool = False
    window: tuple[int, int] | None = None
    lengths: Any = None
    scale: float | None = None
    dropout_rate: float = 0.0
    seed: int = 0
    weights: bool = False


class Answer(NamedTuple):
    """output [*B, T, N, V], and weights [*B, N, T, S] where they were asked for."""

    output: Any
    weights: Any = None


class NotOffered(Exception):
    """The library has no argument for what is asked; the message names it."""


@runtime_checkable
class Target(Protocol):
    """A library's attention behind one method. Nothing may be repaired there: an argument goes to its counterpart."""

    name: str

    def attend(self, request: Request) -> Answer:
        """The library's answer.

        Raises:
            NotOffered: it has no argument for what is asked.
        """
        ...


def offer(request: Request, *offered: str) -> None:
    """Nothing if all that is asked beside q, k and v is among the named fields.

    Raises:
        NotOffered: names the first field that isn't.
    """
    for name in ("mask", "bias", "causal", "window", "lengths", "scale", "dropout_rate", "weights"):
        value = getattr(request, name)
        asked = value is not None and value is not False and not (name == "dropout_rate" and value == 0.0)
        if asked and name not in offered:
            raise NotOffered(f"no {name.replace('_', ' ').removesuffix(' rate')}")
