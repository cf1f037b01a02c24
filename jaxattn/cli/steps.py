"""The steps of a call as `explain` shows them: read off the captured events, with a legend of what names mean."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from rich.table import Table

from .._checks import shape_text
from ..capture import Event
from .terminal import plain

#: What an operation recorded: name → (operation, meaning).
RECORDED = {
    "q": ("queries by head", "what each position looks for"),
    "k": ("keys by head", "what each position is found by"),
    "v": ("values by head", "what each position hands over"),
    "logits": ("q kᵀ · scale", "how well each key answers each query, before mask and bias"),
    "weights": ("softmax of each row", "shares of attention: a row sums to 1, or to 0 where all is masked"),
}
#: Flax's layers; other modules say themselves what they compute, in the first line of their docstring.
LAYERS = {
    "Linear": "x W + b",
    "LayerNorm": "(x − mean) / √(variance + ε) · scale + bias, over the features",
    "Embed": "the row of the table that each id names",
    "Dropout": "nothing, outside training",
}


def steps_of(module: nnx.Module, events: Sequence[Event]) -> list[dict[str, Any]]:
    """One JSON-ready entry for each event: step, path, name, operation, inputs, output, dtype, meaning."""
    kinds = {".".join(map(str, path)): type(part) for path, part in nnx.iter_modules(module)}
    shown = [event for event in events if not hasattr(event.value, "_fields")]  # its fields have events of their own
    steps = []
    for number, event in enumerate(shown, 1):
        operation, meaning = _explained(event, kinds[event.path])
        leaves = jax.tree.leaves(event.value)
        shapes = [list(leaf.shape) for leaf in leaves]
        steps.append(
            {
                "step": number,
                "path": event.path,
                "name": event.name,
                "operation": operation,
                "inputs": [list(shape) for shape in event.inputs],
                "output": shapes[0] if len(shapes) == 1 else shapes,
                "dtype": str(leaves[0].dtype) if leaves else None,
                "meaning": meaning,
            }
        )
    return steps


def _explained(event: Event, kind: type) -> tuple[str, str]:
    if event.kind == "operation":
        operation, meaning = RECORDED.get(event.name, (event.name, ""))
        if event.name == "logits" and not event.inputs:
            return "a formula of its own", meaning  # not made of a q and a k
        return operation, meaning
    documented = (kind.__doc__ or "").strip().partition("\n")[0]
    return event.kind, LAYERS.get(event.kind, documented)


def table_of(steps: Sequence[dict[str, Any]], title: str) -> Table:
    """The steps in the order in which they were finished."""
    table = Table(title=plain(title), title_justify="left", title_style="bold")
    table.add_column("", justify="right", style="dim", no_wrap=True)
    table.add_column("step", no_wrap=True)
    table.add_column("operation", overflow="fold")
    table.add_column("inputs", no_wrap=True)
    table.add_column("output", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for step in steps:
        name = step["path"] if step["path"] and step["name"] == "output" else f"{step['path']}:{step['name']}"
        cells = name.removeprefix(":"), step["operation"], _shapes(step["inputs"]), _shapes([step["output"]])
        table.add_row(str(step["step"]), *map(plain, (*cells, step["meaning"])))
    return table


def _shapes(shapes: Sequence[Sequence[Any]]) -> str:
    """One a line; the same one several times is counted."""
    texts = [shape_text(shape) for shape in shapes]
    return "\n".join(text if (n := texts.count(text)) == 1 else f"{n} × {text}" for text in dict.fromkeys(texts))
