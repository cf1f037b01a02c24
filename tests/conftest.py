"""Before anything imports JAX: programs are compiled once for all workers and runs, and annotations run.

Every annotated function of the package is checked on every call of every test. What XLA compiled is kept beside
pytest's own cache, by program, versions and flags: the same program gives the same machine code.
"""

import os
from pathlib import Path

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# The package's errors must come before the annotations' own: those tests also run with JAXATTN_TYPECHECK=0.
if os.environ.get("JAXATTN_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook("jaxattn", "beartype.beartype")


def pytest_collection_modifyitems(config, items):
    if "sweep" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
