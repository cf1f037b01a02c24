"""Annotations run: every annotated function of the package is checked on every call of every test."""

import os

# The package's errors must come before the annotations' own: those tests also run with JAXATTN_TYPECHECK=0.
if os.environ.get("JAXATTN_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook("jaxattn", "beartype.beartype")
