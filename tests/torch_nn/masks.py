"""Random masks as torch.nn takes them, and inputs in its layouts."""

import numpy as np

#: Of `attn_mask` and its kind; those that end on "by head" are one a head and example.
MASKS = ("none", "bool", "bool by head", "float", "float by head", "causal", "causal float")
PADDINGS = ("none", "bool", "float")
LAYOUTS = ("sequence first", "batch first", "unbatched")


def sequence(rng: np.random.Generator, layout: str, batch: int, length: int, width: int) -> np.ndarray:
    shapes = {"sequence first": (length, batch, width), "batch first": (batch, length, width)}
    return rng.normal(size=shapes.get(layout, (length, width))).astype(np.float32)


def attention_mask(
    kind: str, rng: np.random.Generator, heads: int, length_q: int, length_kv: int, *, empty: bool
) -> np.ndarray | None:
    """Every query sees the first key, but for one query if `empty`.

    Args:
        kind: one of MASKS.
        rng: draws it.
        heads: of all examples together.
        length_q: T.
        length_kv: S.
        empty: whether a query has nothing to attend to.
    """
    if kind == "none":
        return None
    shape = (heads, length_q, length_kv) if kind.endswith("by head") else (length_q, length_kv)
    blocked = rng.random(shape) < 0.4
    blocked[..., 0] = False
    if kind.startswith("causal"):
        blocked = ~np.tri(length_q, length_kv, dtype=bool)
    elif empty and length_q > 1:
        blocked[..., rng.integers(length_q), :] = True
    if "float" not in kind:
        return blocked
    added = np.zeros(shape) if kind.startswith("causal") else rng.normal(size=shape)
    return np.where(blocked, -np.inf, added).astype(np.float32)


def padding_mask(kind: str, rng: np.random.Generator, batch: int | None, length: int, *, empty: bool):
    """Every example sees its first key, but for one of several if `empty`.

    Args:
        kind: one of PADDINGS.
        rng: draws it.
        batch: B; None is one example without a batch axis.
        length: S.
        empty: whether an example is all padding.
    """
    if kind == "none":
        return None
    shape = (length,) if batch is None else (batch, length)
    blocked = rng.random(shape) < 0.4
    blocked[..., 0] = False
    if empty and batch is not None and batch > 1:
        blocked[rng.integers(batch)] = True
    return np.where(blocked, -np.inf, rng.normal(size=shape)).astype(np.float32) if kind == "float" else blocked
