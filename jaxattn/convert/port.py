"""What was done to bring a PyTorch module over."""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from .._checks import listed


@dataclass
class PortReport:
    """What from_torch did.

    Attributes:
        torch_class: of the module that was given, inside its wrappers.
        twins: path of each PyTorch submodule that has a counterpart → path in the Flax module; "" is the module itself.
        unwrapped: path → class of the wrapper that was taken off.
        merged: tensors of which the effective weight was taken: `to_torch` can't give them back.
        frozen: parameters with requires_grad=False, held as FrozenParam.
        shared: name of a shared tensor → the name under which it is stored once.
        training: what the module's training mode meant; None for a module in evaluation mode.
        left: tensors and submodules that were not taken over, and why.
        notes: differences that no value of the forward pass shows.
    """

    torch_class: str
    twins: dict[str, str] = field(default_factory=dict)
    unwrapped: dict[str, str] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    training: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.torch_class}: {len(self.twins)} modules brought over"]
        for title, entries in (
            ("unwrapped", [f"`{path}` from {kind}" if path else kind for path, kind in self.unwrapped.items()]),
            ("merged, one-way", self.merged),
            ("frozen", self.frozen),
            ("shared, stored once", [f"{name} = {stored}" for name, stored in self.shared.items()]),
            ("note", self.notes),
        ):
            if entries:
                lines.append(f"{title}: {listed(entries, 6)}")
        if self.left:
            lines += ["left:", *(f"  - `{name}` {why}" if name else f"  - {why}" for name, why in self.left.items())]
        return "\n".join([*lines, *([self.training] if self.training else [])])


_REPORTS: "WeakKeyDictionary[Any, PortReport]" = WeakKeyDictionary()


def port_report(flax_module: Any) -> PortReport | None:
    """How from_torch made this very module; None for one that it did not make."""
    return _REPORTS.get(flax_module)


def keep_report(flax_module: Any, report: PortReport) -> None:
    _REPORTS[flax_module] = report
