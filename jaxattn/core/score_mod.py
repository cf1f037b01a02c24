"""Functions that change single logits by their position, in FlexAttention's meaning: fn(logit, b, n, i, j)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from .._checks import check_callable, check_score_mod_result
from .index_functions import Span, lift_captured, over_block


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ScoreMod:
    """logit′[n, i, j] = fn(logit[n, i, j], b, n, i, j, *arrays) for the example b."""

    fn: Callable = field(metadata={"static": True})
    arrays: tuple

    def apply(self, logits: jax.Array, b: Any, n: Span, i: Span, j: Span) -> jax.Array:
        """The changed logits of one block, in their dtype; differentiable in `logits` and `arrays`.

        Args:
            logits: [n.size, i.size, j.size], scaled.
            b: index of the example, flat in C order over the batch axes; may be traced.
            n: query heads.
            i: query positions.
            j: key positions.
        """
        example = jnp.asarray(b, jnp.int32)

        def one(n, i, j, logit):
            return self.fn(logit, example, n, i, j, *self.arrays)

        return over_block(one, n, i, j, logits).astype(logits.dtype)


def as_score_mod(score_mod: Any, dtype: Any = jnp.float32) -> ScoreMod | None:
    """None, a callable fn(logit, b, n, i, j) or a pair (fn, arrays) with fn(logit, b, n, i, j, *arrays), in one form.

    fn sees one logit and four int32 scalars: b the example (flat, C order over the batch axes), n the query head,
    i the query, j the key position. It is called once, traced, and applied to all elements by `jax.vmap`.
    Gradients reach `arrays` and every JAX array that fn captures. A function that captures none is traced once for
    all arrays of one shape; one that captures some is traced again in each call outside jit.

    Args:
        score_mod: the function, or function and tuple of arrays.
        dtype: of the logits.

    Raises:
        TypeError: anything else, or a function that does not return a floating number.
        ValueError: a function that does not return one number for one logit.

    Reference: Dong et al. 2024, FlexAttention, section 3, https://arxiv.org/abs/2412.05496.
    """
    if score_mod is None or isinstance(score_mod, ScoreMod):
        return score_mod
    fn, given = score_mod, ()
    if isinstance(score_mod, tuple) and len(score_mod) == 2:
        fn, given = score_mod
    check_callable("score_mod", fn, "fn(logit, b, n, i, j) or a pair (fn, arrays)")
    arrays = jax.tree.map(jnp.asarray, tuple(given))
    index = jax.ShapeDtypeStruct((), jnp.int32)
    fn, captured, result = lift_captured(fn, jax.ShapeDtypeStruct((), dtype), index, index, index, index, *arrays)
    check_score_mod_result(result)
    return ScoreMod(fn, (*arrays, *captured))
