"""Masks as values: which query i may attend to which key j. Combine them with `&`, `|` and `~`.

`masks.causal() & masks.padding(lengths)` says what a [B, 1, T, S] array of booleans says, and an implementation that
walks over blocks can skip what is blocked. A mask is a pytree, so it passes through jit, vmap and scan; new arrays of
the same shapes, such as other lengths, cost no new trace.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

import jax as _jax
import jax.numpy as _jnp
import numpy as _np

from .._checks import check_callable as _check_callable
from .._checks import check_integers as _check_integers
from .._checks import check_mask_dtype as _check_mask_dtype
from .._checks import check_predicate_result as _check_predicate_result
from .._checks import check_whole as _check_whole
from . import mask_kinds as _kinds
from .index_functions import Span as Span
from .index_functions import lift_captured as _lift_captured
from .mask_base import FromArray as _FromArray
from .mask_base import Mask as Mask
from .mask_base import as_leaf as _as_leaf

__all__ = [
    "Mask",
    "Span",
    "causal",
    "from_array",
    "from_predicate",
    "padding",
    "prefix",
    "segments",
    "sliding_window",
]


def _integers(name: str, values: _Any) -> _Any:
    leaf = _as_leaf(values)
    _check_integers(name, leaf)
    return leaf


def causal(offset: _Any = 0) -> Mask:
    """j ≤ i + offset.

    `offset = 0` aligns the first query with the first key, `offset = S − T` the last with the last, as a cache needs.

    Args:
        offset: tokens; a static integer, or an integer array (traced too, as when decoding) () or [*B].

    Raises:
        TypeError: not an integer.
    """
    return _kinds.Causal(*_static_or_moving("offset", offset))


def _static_or_moving(name: str, value: _Any) -> tuple[int | None, _Any]:
    if isinstance(value, _jax.Array | _np.ndarray):
        return None, _integers(name, value)
    _check_whole(name, value)
    return int(value), None


def sliding_window(left: int | None, right: int | None, offset: _Any = 0) -> Mask:
    """i + offset − left ≤ j ≤ i + offset + right.

    (left, 0) is a causal window of left + 1 tokens, (w, w) sees w tokens on each side. The offset is that of `causal`:
    on a cache, where the first query isn't the first token, it is the position of the first query.

    Args:
        left: tokens before the query, 0 or more; None is unbounded.
        right: tokens after the query, 0 or more; None is unbounded.
        offset: tokens; a static integer, or an integer array (traced too, as when decoding) () or [*B].

    Raises:
        TypeError: not an integer or None.
        ValueError: negative.
    """
    for name, side in (("left", left), ("right", right)):
        if side is not None:
            _check_whole(name, side, least=0, instead=" or None (unbounded)")
    before, after = (None if side is None else int(side) for side in (left, right))
    return _kinds.SlidingWindow(before, after, *_static_or_moving("offset", offset))


def padding(lengths: _Any) -> Mask:
    """j < lengths[b]: the keys of an example end there.

    Args:
        lengths: integers [*B] or (), each from 0 to S.

    Raises:
        TypeError: not integers.
    """
    return _kinds.Padding(_integers("lengths", lengths))


def segments(q_ids: _Any, kv_ids: _Any = None) -> Mask:
    """q_ids[b, i] == kv_ids[b, j]: several sequences packed into one, each attends to itself.

    Blocks are skipped best where the ids are sorted.

    Args:
        q_ids: integers [*B, T] or [T].
        kv_ids: integers [*B, S] or [S]; None is `q_ids`.

    Raises:
        TypeError: not integers.
    """
    queries = _integers("q_ids", q_ids)
    return _kinds.Segments(queries, queries if kv_ids is None else _integers("kv_ids", kv_ids))


def prefix(n: _Any) -> Mask:
    """j < n or j ≤ i: all queries see the first n keys, causal from there on.

    Args:
        n: tokens; a static integer of 0 or more, or an integer array, traced or not, () or [*B].

    Raises:
        TypeError: not integers.
        ValueError: negative.

    Reference: Raffel et al. 2020, T5, section 3.2.1, https://arxiv.org/abs/1910.10683.
    """
    if isinstance(n, int | _np.integer):
        _check_whole("n", n, least=0)
        return _kinds.Prefix(int(n))
    return _kinds.Prefix(None, _integers("n", n))


def from_array(a: _Any) -> Mask:
    """a[..., n, i, j], as it is.

    Args:
        a: boolean, True = may attend, broadcastable from the right to [*B, N, T, S].

    Raises:
        TypeError: not boolean.
    """
    leaf = _as_leaf(a)
    _check_mask_dtype(leaf)
    return _FromArray(leaf)


def from_predicate(fn: _Callable, *arrays: _Any) -> Mask:
    """fn(b, n, i, j, *arrays) for each element, in FlexAttention's meaning.

    fn sees four int32 scalars: b the example (flat, C order over the batch axes), n the query head, i the query,
    j the key. It is called once, traced, and applied to all elements by `jax.vmap`, so it may index arrays
    (`jnp.asarray(table)[i, j]`) but not branch on values with `if`.

    Args:
        fn: returns one boolean, True = may attend. It may also capture JAX arrays, which then become leaves of the
            mask; but a function that captures some is traced again for each mask made from it.
        arrays: passed to fn whole, leaves of the mask: the same fn with other arrays of these shapes is not traced
            again.

    Raises:
        TypeError: fn is no function, or returns anything but one boolean.

    Reference: Dong et al. 2024, FlexAttention, section 3, https://arxiv.org/abs/2412.05496.
    """
    _check_callable("fn", fn, "fn(b, n, i, j, *arrays)")
    leaves = _jax.tree.map(_jnp.asarray, arrays)
    index = _jax.ShapeDtypeStruct((), _jnp.int32)
    fn, captured, result = _lift_captured(fn, index, index, index, index, *leaves)
    _check_predicate_result(result)
    return _kinds.FromPredicate(fn, (*leaves, *captured))
