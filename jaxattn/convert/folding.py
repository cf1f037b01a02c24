"""Long lists of paths in few lines: what is said of many equal layers is said once."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<=[.`])\d+(?=[.`])")
#: Lines of one list in an error.
MOST = 12


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


def _line(group: list[tuple[str, str]]) -> str:
    (path, text), (last, _) = group[0], group[-1]
    return f"`{path}` {text}" + (f" [{len(group)} alike, to `{last}`]" if group[1:] else "")
