"""Which part of what was compared could be compared: what is finite on neither side proves nothing."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Coverage:
    """`not_finite` of `elements` could not be measured."""

    elements: int
    not_finite: int = 0

    @property
    def nothing(self) -> bool:
        """Nothing was compared, of an empty tensor neither."""
        return self.elements <= self.not_finite

    @property
    def word(self) -> str:
        """Of a verdict without a problem."""
        return "nothing compared" if self.nothing else "ok for a part" if self.not_finite else "ok"


def parts_sentence(parts: Sequence[Coverage], what: str) -> str:
    """How many elements a verdict over all of them leaves out, and in how many; "" if none."""
    partly = [part for part in parts if part.not_finite]
    nothing = sum(part.nothing for part in parts)
    sentences = []
    if partly:
        left_out, total = sum(part.not_finite for part in partly), sum(part.elements for part in parts)
        sentences.append(
            f"not compared, since finite on neither side: {left_out} of {total} elements, in {len(partly)} of "
            f"{len(parts)} {what}"
        )
    if nothing:
        sentences.append(f"nothing to compare in {nothing} of {len(parts)} {what}")
    return "; ".join(sentences)
