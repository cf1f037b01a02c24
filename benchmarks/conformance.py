"""What attention means in each library: every check of `jaxattn conformance`, no times."""

from collections import Counter
from typing import Any

from jaxattn.conditions import conditions
from jaxattn.conformance import TARGETS, run

from .conditions import announce, options, save

QUICK = ("jaxattn",)


def main(argv: list[str]) -> int:
    """0, or 1 if jaxattn differs from its own semantics (nothing is written then)."""
    given = options("conformance", __doc__, argv)
    results: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for name in QUICK if given.quick else TARGETS:
        announce(f"{name} …")
        try:
            answers = run(name)
        except ImportError as error:
            left_out[name] = str(error)
            announce(f"{name} is left out: {error}")
            continue
        counts = Counter(answer.verdict for answer in answers)
        print(f"{name}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
        if name == "jaxattn" and (wrong := [answer for answer in answers if not answer.ok]):
            announce("\n".join(f"{answer.check}: expected {answer.expected}, got {answer.came}" for answer in wrong))
            return 1
        results += [answer.to_json() for answer in answers]
    facts = {"inputs": "tiny, with results known by hand", "dtype": "float32 unless the row says otherwise"}
    save(
        "conformance",
        {"conditions": conditions(**facts, quick=given.quick), "left_out": left_out, "results": results},
        given,
    )
    return 0
