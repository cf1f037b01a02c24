"""Checkpoint keys brought to the names a module expects, every change reported; and what to say when that fails."""

import bisect
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .._checks import ConversionError
from .._text import argument

#: Path segments that wrappers put into keys: DataParallel and DDP, torch.compile, FSDP, activation checkpointing.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass
class KeyMap:
    """`source_of[name]` is the checkpoint's own key for an expected name; the rest is what the report says."""

    source_of: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    unwrapped: dict[str, str] = field(default_factory=dict)
    outside_prefix: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


def match_keys(
    keys: Iterable[str], expected: Iterable[str], *, prefix: str = "", rename: Mapping[str, str] | None = None
) -> KeyMap:
    """Find each expected name among the checkpoint's keys.

    Args:
        keys: the checkpoint's keys.
        expected: the names that the module's rules read.
        prefix: take the sub-tree below this path ("encoder" or "encoder."); keys outside it are reported.
        rename: old path → new path, applied to whole leading path segments, before everything else.

    Raises:
        ConversionError: two keys that come to one name.
    """
    prefix = prefix if not prefix or prefix.endswith(".") else prefix + "."
    expected = {prefix + name for name in expected}
    bare: dict[str, list[str]] = {}
    for name in sorted(expected, key=lambda name: -name.count(".")):
        bare.setdefault(_bare(name), []).append(name)
    found, clashes, renamer = KeyMap(), [], _Renamer(rename or {})
    for key in keys:
        name = renamer(key)
        if name != key:
            found.renamed[key] = name
        if name not in expected:
            unwrapped = _unwrap(name, bare)
            if unwrapped is not None:
                found.unwrapped[key] = unwrapped
                name = unwrapped
        if name in expected:
            short = name.removeprefix(prefix)
            if short in found.source_of:
                clashes.append(f"`{found.source_of[short]}` and `{key}` both come to `{name}`: drop or rename one.")
            found.source_of[short] = key
        elif prefix and not _leads_below(name, prefix):
            found.outside_prefix.append(key)
        else:
            found.unexpected.append(key)
    if clashes:
        raise ConversionError("Keys of the checkpoint collide.", clashes)
    return found


class _Renamer:
    """Leading path segments replaced, by the first of the renames that fits; the cost of a key is its own length."""

    def __init__(self, rename: Mapping[str, str]):
        pairs = [(old.rstrip("."), new.rstrip(".")) for old, new in rename.items()]
        self._new = {old: (order, new) for order, (old, new) in reversed(list(enumerate(pairs)))}
        self._depth = max((old.count(".") + 1 for old in self._new), default=0)

    def __call__(self, key: str) -> str:
        fitting, end = [], 0
        for _ in range(self._depth):
            end = key.find(".", end)
            old = key if end < 0 else key[:end]
            if old in self._new:
                fitting.append((*self._new[old], len(old)))
            if end < 0:
                break
            end += 1
        if not fitting:
            return key
        _, new, length = min(fitting)
        return (new + key[length:]).lstrip(".")


def _bare(name: str) -> str:
    """`name` without any wrapper segment; the last segment is what a tensor is called."""
    *path, last = name.split(".")
    return ".".join([*(segment for segment in path if segment not in WRAPPERS), last])


def _unwrap(key: str, bare: Mapping[str, list[str]]) -> str | None:
    """The expected name that is left of `key` when as few wrapper segments as possible are removed."""
    for name in bare.get(_bare(key), ()):
        rest = iter(key.split("."))
        if all(segment in rest for segment in name.split(".")):  # in this order; what it skips are wrappers
            return name
    return None


def _leads_below(name: str, prefix: str) -> bool:
    """Whether `name`, with or without some of its wrapper segments, lies below `prefix`."""
    segments, at = name.split("."), 0
    for wanted in prefix.split(".")[:-1]:
        while at < len(segments) - 1 and segments[at] != wanted and segments[at] in WRAPPERS:
            at += 1
        if segments[at] != wanted or at == len(segments) - 1:
            return False
        at += 1
    return True


class Nearest:
    """Which of many names one was probably meant to be.

    Only its neighbours are compared with it, in the order of the names and in that of their ends: a name differs from
    what it was meant to be in few places.
    """

    _ALL, _AROUND, _LONGEST = 40, 8, 300

    def __init__(self, names: Iterable[str]):
        self._orders = [sorted(names)]
        if len(self._orders[0]) > self._ALL:
            self._orders.append(sorted(name[::-1] for name in self._orders[0]))

    def __call__(self, name: str) -> str | None:
        if len(name) > self._LONGEST:
            return None
        close = difflib.get_close_matches(name, self._candidates(name), n=1, cutoff=0.75)
        return close[0] if close else None

    def _candidates(self, name: str) -> list[str]:
        if len(self._orders) == 1:
            return self._orders[0]
        found = []
        for names, sought, step in zip(self._orders, (name, name[::-1]), (1, -1), strict=True):
            at = bisect.bisect(names, sought)
            found += [near[::step] for near in names[max(at - self._AROUND, 0) : at + self._AROUND]]
        return [near for near in found if len(near) <= self._LONGEST]


def advice(missing: list[str], unexpected: list[str]) -> list[str]:
    """What the pattern of missing and unexpected keys as a whole points at."""
    hints = []
    if not missing or not unexpected:
        return hints
    given, first = set(unexpected), missing[0]
    prefixes = sorted(key[: -len(first)] for key in given if key.endswith("." + first))
    fitting = [prefix for prefix in prefixes if all(prefix + name in given for name in missing)]
    if fitting:
        shown = " or ".join(argument("prefix", prefix.rstrip(".")) for prefix in fitting[:5])
        more = f" or {len(fitting) - 5} others" if len(fitting) > 5 else ""
        hints.append(f"Every missing key is there under another path: pass {shown}{more}.")
    top = first.split(".")[0] + "."
    if all(name.startswith(top) and name.removeprefix(top) in given for name in missing):
        hints.append(f"Every missing key is there without `{top}`: load into that sub-module instead.")
    return hints


_SEPARATE = ({"q_proj", "k_proj", "v_proj"}, {"query", "key", "value"}, {"Wq", "Wk", "Wv"}, {"W_q", "W_k", "W_v"})


def packing_hint(missing: list[str], unexpected: list[str]) -> list[str]:
    """Packed against separate query, key and value projections."""
    packed_missing = any("in_proj" in name for name in missing)
    packed_given = any("in_proj" in name or ".qkv." in f".{name}" or "c_attn" in name for name in unexpected)
    if packed_missing and any(names & set(_segments(unexpected)) for names in _SEPARATE):
        return ["The module wants packed q/k/v (3E, E), the checkpoint has them separate: stack q, k, v along axis 0."]
    if packed_given and any(names & set(_segments(missing)) for names in _SEPARATE):
        return [
            "The checkpoint has packed q/k/v (3E, E), the module wants them separate: split along axis 0 in thirds."
        ]
    return []


def _segments(names: Iterable[str]) -> list[str]:
    return [segment for name in names for segment in name.split(".")]
