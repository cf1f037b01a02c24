"""What a trace found: every layer's errors, the first place where both sides part, and its likely cause."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .._checks import shape_text
from .coverage import parts_sentence
from .folding import folded_layers, folded_paths
from .printing import Report, jsonable, number
from .trace_layer import WHOLE as WHOLE
from .trace_layer import Layer as Layer


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
        """Both sides agree, and in something: a comparison of nothing is no proof."""
        return self.first is None and not self.nothing

    @property
    def nothing(self) -> bool:
        """Whether the result of the whole module holds nothing that could be compared."""
        whole = [layer.coverage for layer in self.layers if not layer.torch_path]
        return any(part is not None and part.nothing for part in whole)

    @property
    def partly(self) -> str:
        """Which part of the elements the verdict is about; "" if it is about all."""
        return parts_sentence([part for layer in self.layers if (part := layer.coverage) is not None], "calls")

    @property
    def failures(self) -> list[str]:
        return [item.line for item in self.evidence]

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; infinities and NaN as strings."""
        return jsonable({**asdict(self), "ok": self.ok, "partly": self.partly})

    @property
    def headline(self) -> str:
        """Verdict, place and cause in one sentence."""
        what = f"Trace of torch {self.torch_module} and Flax {self.flax_module}"
        if self.first is None:
            verdict = "nothing is proven, the whole result holds nothing to compare" if self.nothing else "ok"
            return f"{what}: {verdict}" + (f"; {self.partly}" if self.partly else "")
        where = f"`{self.first}`" if self.first else WHOLE
        return f"{what}: they part first at {where}; " + (self.cause or "cause unknown")

    def __rich__(self) -> Group:
        parts: list[Any] = [self._table()]
        parts += [Text(item.line) for item in self.evidence]
        parts += [Text(f"unpaired {path}") for path in folded_paths(self.unpaired)]
        return Group(*parts, *(Text(f"note: {note}") for note in self.notes))

    def _table(self) -> Table:
        table = Table(title=Text(self.headline), title_justify="left")
        table.add_column("layer", overflow="fold")
        table.add_column("class", overflow="fold")
        table.add_column("shape", no_wrap=True)
        for name in ("local", "allowed", "end to end", "allowed"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for layer in folded_layers(self.layers):
            numbers = (layer.local_error, layer.local_allowed, layer.error, layer.allowed)
            verdict = Text(layer.verdict, style="green" if layer.ok else "bold red")
            cells = (layer.name, layer.torch_kind, shape_text(layer.shape), *map(number, numbers))
            table.add_row(*(Text(cell) for cell in cells), verdict)
        return table
