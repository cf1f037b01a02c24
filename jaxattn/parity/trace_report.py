"""What a trace found: every layer's errors, the first place where both sides part, and its likely cause."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .._checks import shape_text
from .printing import Report, jsonable, number

#: What the path "" is called.
WHOLE = "(the whole module)"


@dataclass(frozen=True)
class Evidence:
    """One finding.

    Attributes:
        kind: "configuration", "weights", "arguments", "local", "output", "nan" or "precision".
        path: torch path of the module, "" is the whole one.
        sentence: what was found, with numbers.
    """

    kind: str
    path: str
    sentence: str

    @property
    def line(self) -> str:
        where = f"`{self.path}`" if self.path else WHOLE
        return f"{self.kind} {where}: {self.sentence}"


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

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def name(self) -> str:
        """The path, and which call of a module that is called again."""
        return (self.torch_path or WHOLE) + (f" (call {self.call + 1})" if self.call else "")


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention module on both sides, before dropout, [*B, N, T, S]."""

    path: str
    torch: np.ndarray
    flax: np.ndarray


@dataclass(frozen=True)
class TraceReport(Report):
    """The result of `trace`; print it, or call `assert_ok`.

    Attributes:
        torch_module: class name.
        flax_module: class name.
        layers: in the order in which torch finished them.
        evidence: in the order in which it was looked for.
        first: torch path of the first place where both sides part, None if they agree.
        cause: its likely cause, "name of the cause: what was found"; None if they agree or nothing explains it.
        unpaired: what is on one side only, "torch: path" or "flax: path".
        maps: attention weights of both sides.
        notes: what the numbers alone don't say.
        device: where each side ran.
        versions: of everything that computed.
        conditions: settings of the run.
    """

    torch_module: str
    flax_module: str
    layers: tuple[Layer, ...]
    evidence: tuple[Evidence, ...] = ()
    first: str | None = None
    cause: str | None = None
    unpaired: tuple[str, ...] = ()
    maps: tuple[AttentionMap, ...] = ()
    notes: tuple[str, ...] = ()
    device: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.first is None

    @property
    def failures(self) -> list[str]:
        return [item.line for item in self.evidence]

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; infinities and NaN as strings."""
        return jsonable({**asdict(self), "ok": self.ok})

    @property
    def headline(self) -> str:
        """Verdict, place and cause in one sentence."""
        what = f"Trace of torch {self.torch_module} and Flax {self.flax_module}"
        if self.first is None:
            return f"{what}: ok"
        where = f"`{self.first}`" if self.first else WHOLE
        return f"{what}: they part first at {where}; " + (self.cause or "cause unknown")

    def __rich__(self) -> Group:
        parts: list[Any] = [self._table()]
        parts += [Text(item.line) for item in self.evidence]
        parts += [Text(f"unpaired {path}") for path in self.unpaired]
        return Group(*parts, *(Text(f"note: {note}") for note in self.notes))

    def _table(self) -> Table:
        table = Table(title=Text(self.headline), title_justify="left")
        table.add_column("layer", overflow="fold")
        table.add_column("class", overflow="fold")
        table.add_column("shape", no_wrap=True)
        for name in ("local", "allowed", "end to end", "allowed"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for layer in self.layers:
            numbers = (layer.local_error, layer.local_allowed, layer.error, layer.allowed)
            verdict = Text("; ".join(layer.problems) or "ok", style="green" if layer.ok else "bold red")
            cells = (layer.name, layer.torch_kind, shape_text(layer.shape), *map(number, numbers))
            table.add_row(*(Text(cell) for cell in cells), verdict)
        return table
