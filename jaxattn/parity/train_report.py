"""What training on both sides found: every step's errors, and the first step that parts."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .printing import Report, jsonable, number


@dataclass(frozen=True)
class Step:
    """One optimizer step, both sides in float64.

    Attributes:
        index: 0, 1, …
        torch_loss: before the update.
        flax_loss: before the update.
        loss_error: |difference|, against 1e-9 · max(1, |loss|).
        gradient_error: of the worst tensor, as a share of the module's largest gradient.
        parameter_error: of the worst tensor after the update, against 1e-9.
        worst: torch's name of that tensor, "" if every one is equal.
        not_finite: elements of the loss, the gradients and the updated parameters that are finite on neither side.
        proves: the loss and every gradient are numbers, here and in every step before.
    """

    index: int
    torch_loss: float
    flax_loss: float
    loss_error: float
    gradient_error: float
    parameter_error: float
    worst: str
    not_finite: int = 0
    proves: bool = True


@dataclass(frozen=True)
class TrainReport(Report):
    """The result of `train`; print it, or call `assert_ok`.

    Attributes:
        torch_module: class name.
        flax_module: class name.
        optimizer: torch's, with what is particular about it.
        steps: in order; after the step that parts, if one does, errors only grow from it.
        first: index of that step, None if they agree.
        problems: what fails there, one sentence each.
        notes: what the numbers alone don't say.
        device: where each side ran.
        versions: of everything that computed.
        conditions: settings of the run.
    """

    torch_module: str
    flax_module: str
    optimizer: str
    steps: tuple[Step, ...]
    first: int | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    device: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Both sides agree, in one step at least: what is not a number on both sides is no proof."""
        return self.first is None and not self.problems and self.proven > 0

    @property
    def proven(self) -> int:
        """How many steps prove anything: those before the loss or a gradient stops being a number on both sides."""
        return sum(step.proves for step in self.steps)

    @property
    def partly(self) -> str:
        """Which steps, and how many numbers of those that are counted, prove nothing; "" if all do."""
        sentences = []
        if self.proven < len(self.steps):
            start = next(step.index for step in self.steps if not step.proves)
            lost = f"{len(self.steps) - self.proven} of {len(self.steps)} steps prove nothing"
            sentences.append(f"from step {start} on the loss or a gradient is finite on neither side: {lost}")
        left_out = max((step.not_finite for step in self.steps if step.proves), default=0)
        if left_out:
            sentences.append(f"{left_out} parameter values are finite on neither side: not compared")
        return "; ".join(sentences)

    @property
    def failures(self) -> list[str]:
        return list(self.problems) or ([] if self.ok else [self.partly])

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; infinities and NaN as strings."""
        return jsonable({**asdict(self), "ok": self.ok, "proven": self.proven, "partly": self.partly})

    @property
    def headline(self) -> str:
        """Verdict in one sentence."""
        what = f"Training of torch {self.torch_module} and Flax {self.flax_module} with {self.optimizer}"
        if self.first is None and not self.problems:
            agree = f"{self.proven} steps agree" if self.proven else "nothing is proven"
            return f"{what}: {agree}" + (f"; {self.partly}" if self.partly else "")
        return f"{what}: they part" + ("" if self.first is None else f" at step {self.first}")

    def __rich__(self) -> Group:
        texts = [*self.problems, *(f"note: {note}" for note in self.notes)]
        return Group(self._table(), *(Text(text) for text in texts))

    def _table(self) -> Table:
        table = Table(title=Text(self.headline), title_justify="left")
        for name in ("step", "torch loss", "|Δ loss|", "gradients", "parameters"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("worst", overflow="fold")
        table.add_column("verdict")
        for step in self.steps:
            errors = map(number, (step.loss_error, step.gradient_error, step.parameter_error))
            cells = (str(step.index), f"{step.torch_loss:.6g}", *errors, step.worst)
            table.add_row(*(Text(cell) for cell in cells), self._verdict(step))
        return table

    def _verdict(self, step: Step) -> Text:
        if self.first is None or step.index < self.first:
            return Text("ok", style="green") if step.proves else Text("proves nothing")
        return Text("parts", style="bold red") if step.index == self.first else Text("follows")
