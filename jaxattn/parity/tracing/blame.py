"""The first place where both sides part, and why."""

from collections.abc import Sequence

import numpy as np

from ..trace_report import Evidence
from .argument_causes import between, forward_cause, mask_cause
from .arguments_apart import Apart
from .attention_causes import attention_cause, inside_sentence
from .findings import Cause, Finding, same
from .hand_written import hand_written_cause
from .measuring import Measured, Sides
from .module_causes import module_cause
from .output_causes import dropout_cause, output_cause

_ORDER = ("configuration", "weights", "arguments", "local", "output")


def first_and_cause(
    sides: Sides, measured: Sequence[Measured], findings: Sequence[Finding], apart: Apart | None = None
) -> tuple[str | None, Cause | None]:
    """(torch path of the first place, its cause): the earliest call with a finding or an error of its own.

    At one place what was read off the modules explains what was measured.
    """
    candidates = [(_place(item.path, measured), _ORDER.index(item.kind), item.path, item) for item in findings]
    locally = [(index, item) for index, item in enumerate(measured) if item.parts_locally]
    candidates += [(index, _ORDER.index("local"), item.layer.torch_path, item) for index, item in locally[:1]]
    if not candidates:
        later = [(index, item) for index, item in enumerate(measured) if not item.layer.ok]
        candidates = [(index, _ORDER.index("output"), item.layer.torch_path, item) for index, item in later[:1]]
    if not candidates:
        return None, None
    place, _, path, found = min(candidates, key=lambda candidate: candidate[:2])
    if apart is not None and place >= apart.start:
        if isinstance(found, Measured) or not _around(path, apart.item.layer.torch_path):
            return _place_and_cause_of(sides, apart, found)
    if isinstance(found, Finding):
        return path, found.cause
    return path, explain(sides, found) or _elsewhere(measured, found)


def _place_and_cause_of(sides: Sides, apart: Apart, found: Measured | Finding) -> tuple[str, Cause]:
    """The part that gets another mask; of other inputs the module that computes them, whose result may say more."""
    if apart.by_mask:
        return apart.item.layer.torch_path, mask_cause(apart)
    explained = explain(sides, apart.around) if found is apart.around else None
    return apart.around.layer.torch_path, explained or forward_cause(apart, sides.calls)


def _elsewhere(measured: Sequence[Measured], found: Measured) -> Cause | None:
    sentence = _parts_sentence(measured, found)
    return Cause("its own forward", sentence) if sentence else None


def _place(path: str, measured: Sequence[Measured]) -> int:
    """When torch first finished the module, or the nearest one around it that was called."""
    while True:
        for index, item in enumerate(measured):
            if item.layer.torch_path == path:
                return index
        if not path:
            return len(measured)
        path = path.rpartition(".")[0]


def evidence_of(
    measured: Sequence[Measured], findings: Sequence[Finding], first: str | None, apart: Apart | None = None
) -> list[Evidence]:
    """What was found, in the order in which it was looked for; of later layers only their number."""
    ordered = sorted(findings, key=lambda finding: _ORDER.index(finding.kind))
    evidence = [Evidence(finding.kind, finding.path, str(finding.cause)) for finding in ordered]
    if apart is not None and apart.by_mask and apart.item.layer.torch_path == first:
        evidence.append(Evidence("arguments", apart.item.layer.torch_path, mask_cause(apart).sentence))
    for item in measured:
        layer = item.layer
        if item.parts_locally and layer.torch_path == first:
            inside = item.attention and item.local.result and inside_sentence(item.attention, item.local.result.inside)
            sentence = f"on torch's own input {layer.problems[0].removeprefix('local: ')}"
            if not inside:
                inside = between(apart) if apart and apart.around is item else _parts_sentence(measured, item)
            evidence.append(Evidence("local", layer.torch_path, sentence + (f"; {inside}" if inside else "")))
            break
    others = [item.layer.torch_path for item in measured if item.parts_locally]
    others = [path for path in others if path != first and not _around(path, first or "")]
    if others:
        evidence.append(Evidence("local", others[0], f"further calls that differ on torch's own input: {len(others)}"))
    if measured and not measured[-1].layer.ok:
        evidence.append(
            Evidence("output", "", f"the whole result: {measured[-1].layer.problems[0].partition(': ')[2]}")
        )
    return evidence


def _parts_sentence(measured: Sequence[Measured], found: Measured) -> str:
    """Between which parts of a module with a forward of its own the whole runs part: none of them is wrong itself."""
    layer, parts = found.layer, []
    for item in measured[: measured.index(found)]:
        if item.layer.torch_path == layer.torch_path:
            parts = []  # of an earlier call
        elif _around(layer.torch_path, item.layer.torch_path) and item.layer.error is not None:
            parts.append(item.layer)
    if not parts:
        return ""
    parting = next((index for index, part in enumerate(parts) if not part.ok), len(parts))
    if parting == len(parts):
        return f"all its parts agree in the whole run: look after `{parts[-1].name}`"
    if parting == 0:
        return f"`{parts[0].name}`, its first part, gets something else in the whole run already"
    agrees, parts_from = parts[parting - 1].name, parts[parting].name
    return f"look between `{agrees}`, which agrees in the whole run, and `{parts_from}`, which gets something else"


def _around(path: str, inner: str) -> bool:
    """Whether the module at `path` holds the one at `inner`: it differs because that one does."""
    return not path or inner.startswith(f"{path}.")


def explain(sides: Sides, found: Measured) -> Cause | None:
    """Why the Flax module gives something else on torch's own input."""
    call, local = found.call, found.local
    ours, truth = local.outputs, list(call.outputs.arrays)
    if local.error is not None:
        return Cause("error", found.layer.problems[0].removeprefix("local: "))
    if not ours:
        return None
    if cause := _dropout(sides, found):
        return cause
    if found.attention is not None and local.result is not None:
        if cause := attention_cause(found.attention, ours, local.result.inside):
            return cause
    if found.attention is None and local.result is not None:
        inside = [array for part in sides.calls[call.begin :] for array in part.outputs.arrays[:1] if part is not call]
        if cause := hand_written_cause(call, inside, local.result.inside):
            return cause
    if cause := output_cause(call, ours[0]):
        return cause
    if cause := module_cause(call, sides.calls, ours):
        return cause
    if truth[0].shape != ours[0].shape:
        return Cause("shape", found.layer.problems[0].removeprefix("local: "))
    if np.isnan(ours[0]).any() != np.isnan(truth[0]).any():
        return Cause("NaN", found.layer.problems[0].removeprefix("local: "))
    return None


def _dropout(sides: Sides, found: Measured) -> Cause | None:
    """Another result in a second call, or the pattern of dropout."""
    for truth, ours in zip(found.call.outputs.arrays, found.local.outputs, strict=False):
        if cause := dropout_cause(truth, ours):
            return cause
    again = sides.local(found.call, again=True).outputs
    if again and not same(again, found.local.outputs) and not np.isnan(again[0]).any():
        return Cause("dropout left on", "two calls of the Flax module with the same arguments differ")
    return None
