"""The checks, put to a target."""

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax

from .checks import CHECKS
from .finding import Check
from .target import NotOffered, Target
from .targets import make_target

Verdict = Literal["pass", "differs", "refused", "not offered"]


@dataclass(frozen=True)
class Result:
    """One check of one target.

    Attributes:
        target: its name.
        check: the check's id.
        question: the check's.
        expected: the check's.
        verdict: "pass"; "differs"; "refused", where the library raises on a request that is valid here; "not offered",
            where it has no argument for it.
        came: what came instead, the error's message, or what is missing; may be empty for "pass".
    """

    target: str
    check: str
    question: str
    expected: str
    verdict: Verdict
    came: str

    @property
    def ok(self) -> bool:
        return self.verdict == "pass"

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def run(target: str | Target) -> list[Result]:
    """One result for each check, in the table's order.

    Args:
        target: a name of `TARGETS`, or your own object with a `name` and a method `attend(request) -> Answer`.

    Raises:
        ValueError: an unknown name.
        ImportError: the library is not installed; names the extra that installs it.
    """
    asked = make_target(target) if isinstance(target, str) else target
    return [_result(check, asked) for check in CHECKS]


def _result(check: Check, target: Target) -> Result:
    try:
        with jax.enable_x64(True) if check.float64 else contextlib.nullcontext():
            finding = check.find(target.attend)
        verdict, came = ("pass" if finding.ok else "differs"), finding.came
    except NotOffered as missing:
        verdict, came = "not offered", str(missing)
    except Exception as error:  # whatever a foreign library raises is its answer
        verdict, came = "refused", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
    return Result(target.name, check.id, check.question, check.expected, verdict, came)
