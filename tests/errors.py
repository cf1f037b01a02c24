"""Errors a user sees. Executed annotations meet a wrong kind first; `JAXATTN_TYPECHECK=0` shows the package's own."""

import contextlib
import os
import re

import jaxtyping
import pytest


@contextlib.contextmanager
def refuses(error: type[Exception], sentence: str):
    hooked = os.environ.get("JAXATTN_TYPECHECK", "1") != "0"
    with pytest.raises((error, jaxtyping.TypeCheckError) if hooked else error) as caught:
        yield
    if not isinstance(caught.value, jaxtyping.TypeCheckError):
        assert re.search(sentence, str(caught.value), re.DOTALL), str(caught.value)
