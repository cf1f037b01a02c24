"""THE tolerances. They only shrink. The parity criteria themselves are the product's: jaxattn.parity.criterion."""

from typing import Any

import numpy as np

#: Two float64 runs of one algorithm, relative to max(1, max|ref|).
FLOAT64 = 1e-12
#: Two float32 runs of one Flax module on other compilation paths (jit, vmap, loop), in units of eps · max(1, max|ref|).
PATHS_ULP = 32


def close(got: Any, reference: Any, dtype: Any = np.float32) -> bool:
    """Equal up to the rounding that another compilation path of the same algorithm may bring."""
    got, reference = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    scale = max(1.0, float(np.max(np.abs(reference), initial=0.0)))
    unit = np.finfo(dtype).eps if np.dtype(dtype).kind == "f" else 2.0**-7
    return got.shape == reference.shape and bool(np.all(np.abs(got - reference) <= PATHS_ULP * unit * scale))
