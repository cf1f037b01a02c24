"""Long lists of paths in few lines: what is said of many equal layers is said once."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<=[.`])\d+(?=[.`])")
_PATH = re.compile(r"`([\w.]+)`")
#: Lines of one list in an error.
MOST = 12
#: Where a refusal is there at full length.
REST = "print(jaxattn.convert.refusal_report(model))"


def folded(entries: Iterable[tuple[str, str]], most: int = MOST) -> list[str]:
    """Lines "`path` text", equal layers in one, and how many of them there are; what is beyond `most` is counted.

    Two are equal if they differ in the numbers of paths alone, their own and those that the text names.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, text in entries:
        groups.setdefault(_NUMBER.sub("*", f"`{path}` {text}"), []).append((path, text))
    lines = [f"  - {_line(group)}" for group in groups.values()]
    left = sum(len(group) for group in list(groups.values())[most:])
    return lines[:most] + ([f"  - … and {left} more"] if left else [])


def folded_sentences(sentences: Iterable[str]) -> list[str]:
    """The same for whole sentences, which differ in numbers of paths alone; what is beyond is in the report."""
    groups: dict[str, list[str]] = {}
    for sentence in sentences:
        groups.setdefault(_NUMBER.sub("*", sentence), []).append(sentence)
    lines = [f"  - {group[0]}" + _alike(group) for group in groups.values()]
    left = sum(len(group) for group in list(groups.values())[MOST:])
    rest = [f"  - … and {left} more"] if left else []
    several = len(groups) > MOST or any(group[1:] for group in groups.values())
    return lines[:MOST] + rest + ([f"All of it: {REST}."] if several else [])


def _alike(group: list[str]) -> str:
    pairs = zip(_PATH.findall(group[0]), _PATH.findall(group[-1]), strict=True)
    last = [other for path, other in pairs if path != other][:1]
    return "".join([f" [{len(group)} alike", *(f", to `{path}`" for path in last), "]"]) if group[1:] else ""


def left_out(lines: list[str]) -> bool:
    """Whether these lines stand for more than they say."""
    return any("…" in line or " alike" in line for line in lines)


def _line(group: list[tuple[str, str]]) -> str:
    (path, text), (last, _) = group[0], group[-1]
    return f"`{path}` {text}" + (f" [{len(group)} alike, to `{last}`]" if group[1:] else "")
