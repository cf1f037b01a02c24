"""One call of one paired submodule, as a trace measured it."""

from dataclasses import dataclass

from .coverage import Coverage
from .printing import number

#: What the path "" is called.
WHOLE = "(the whole module)"


@dataclass(frozen=True)
class Layer:
    """One call of one paired submodule. Errors are in float64, None where nothing was measured.

    Attributes:
        torch_path: "" is the whole module.
        flax_path: of its twin.
        call: 0, 1, … of a module that is called again.
        torch_kind: class name.
        flax_kind: class name.
        shape: of the output; of the first one where there are several.
        local_error: the Flax submodule on torch's own input of this call, against torch's output.
        local_allowed: what the criterion allows for it.
        error: of this submodule's output in the whole run, what went wrong before it included.
        allowed: what the criterion allows for it.
        problems: what fails, one sentence each.
        elements: numbers in all outputs; None where nothing was measured.
        not_finite: those that are finite on neither side, and so prove nothing.
        ill_conditioned: what is allowed is what torch's own result moves by with its inputs.
    """

    torch_path: str
    flax_path: str
    call: int
    torch_kind: str
    flax_kind: str
    shape: tuple[int, ...]
    local_error: float | None = None
    local_allowed: float | None = None
    error: float | None = None
    allowed: float | None = None
    problems: tuple[str, ...] = ()
    elements: int | None = None
    not_finite: int = 0
    ill_conditioned: bool = False

    @property
    def coverage(self) -> Coverage | None:
        """Which part was compared; None where nothing was measured."""
        return None if self.elements is None else Coverage(self.elements, self.not_finite)

    @property
    def verdict(self) -> str:
        """ "ok" and for which part, or what fails."""
        words = list(self.problems) or [self.coverage.word if self.coverage else "ok"]
        if self.ill_conditioned:
            words.append(f"ill-conditioned: limit {number(self.limit)}, what torch moves by with one ulp")
        if self.not_finite:
            words.append(f"{self.not_finite} of {self.elements} elements are finite on neither side: not compared")
        return "; ".join(words)

    @property
    def limit(self) -> float | None:
        """The wider one of what is allowed."""
        return max((allowed for allowed in (self.local_allowed, self.allowed) if allowed is not None), default=None)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def name(self) -> str:
        """The path, and which call of a module that is called again."""
        return (self.torch_path or WHOLE) + (f" (call {self.call + 1})" if self.call else "")
