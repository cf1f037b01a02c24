"""JSON in files of others, parsed only where what it makes stays small and every name says one thing."""

import json

MAX_BYTES = 100_000_000
"""The limit that the safetensors format sets its header; other JSON beside weights is far smaller."""
MAX_ENTRIES = 1_500_000
"""Objects, arrays and what lies in them; a header takes 8 for each tensor. A few bytes of text make a hundred here."""


def parse_json(content: bytes) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: it is not valid, too large to be described by it, nested too deep, or names an entry twice.
    """
    check_size(content)
    try:
        return json.loads(content, object_pairs_hook=_unique_pairs)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error


def check_size(content: bytes) -> None:
    """Refuse a JSON text by what it would make, before anything is made of it."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"its JSON has more than {MAX_BYTES:,} bytes")
    entries = sum(map(content.count, (b"{", b"[", b",")))
    if entries > MAX_ENTRIES:
        raise ValueError(f"its JSON has about {entries:,} entries, more than {MAX_ENTRIES:,}")


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object as a dict, refusing a name that occurs twice (readers keep the last one silently)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"its JSON names {name!r} twice")
            seen.add(name)
    return found
