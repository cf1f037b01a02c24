"""Texts of a report inside a page: escaped, with places to break a long path and none inside a number."""

import re

from markupsafe import Markup, escape

_CODE = re.compile(r"`([^`]+)`")
_NUMBER = re.compile(r"\d[\d.]*e-\d+")
_JOINT = re.compile(r"(?<=[._])(?=\w)|(?<=[a-z])(?=[A-Z])")


def path(text: str) -> Markup:
    """A dotted name that breaks after its dots and underscores, and before the words of a class name."""
    return Markup("<wbr>").join(_JOINT.split(text))


def prose(text: str) -> Markup:
    """A sentence: `names` in backticks become code, numbers don't break at their minus."""
    pieces = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(path(piece)) if place % 2 else _numbers(piece)
        for place, piece in enumerate(pieces)
    )


def _numbers(text: str) -> Markup:
    return Markup(_NUMBER.sub(r'<span class="number">\g<0></span>', str(escape(text))))
