"""One key/value head of one example, and what lies between q kᵀ and the softmax on a block of its logits."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .dropout import keep_bits
from .index_functions import Span, positions, window, with_rank
from .schedule import Schedule
from .weighted import finite_part


@dataclass(frozen=True)
class Plan:
    """What is known of an attention at trace time.

    Attributes:
        num_heads: N, query heads.
        kv_heads: K; head x of B·K key/value heads belongs to the example x // K.
        soft_cap: c of c · tanh(logits / c), None for none.
        dropout_rate: share of the weights that is dropped.
        precision: of the matrix products.
        forward: block sizes of the forward pass.
        backward: block sizes of the backward pass.
        finite_bias: whether there is a bias, of numbers above −∞.
    """

    num_heads: int
    kv_heads: int
    soft_cap: float | None
    dropout_rate: float
    precision: Any
    forward: Schedule
    backward: Schedule
    finite_bias: bool = False

    @property
    def group(self) -> int:
        return self.num_heads // self.kv_heads


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Smooth:
    """What has derivatives: q [X, G, T, H], scaled, k [X, S, H], v [X, S, V], and the parts of the logits.

    X = B·K; bias is [B, N, T, S] or 1 in each of them; score holds the floating arrays of a ScoreMod.
    """

    q: Any
    k: Any
    v: Any
    bias: Any = None
    score: Any = None

    @property
    def finite_operands(self) -> dict[str, jax.Array]:
        """q, k and v, 0 where they aren't finite."""
        return {name: finite_part(getattr(self, name)) for name in ("q", "k", "v")}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Fixed:
    """What has none: the mask, flattened over the batch; the weights that dropout keeps, as [B, N, T, S] or 1, or two
    words that draw them; and the rest of the ScoreMod.
    """

    mask: Any = None
    keep: Any = None
    words: Any = None
    score: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Head:
    """Where a block of logits lies: which example, which query heads, and what acts on their logits."""

    plan: Plan = field(metadata={"static": True})
    b: Any
    first_head: Any
    fixed: Fixed
    mask: Any

    @property
    def n(self) -> Span:
        return Span(self.first_head, self.plan.group)

    def logits(self, products: jax.Array, bias: Any, score: Any, i: Span, j: Span) -> jax.Array:
        """[G, i, j]: the products q kᵀ after soft cap, score function and bias, before the mask."""
        cap = self.plan.soft_cap
        logits = products if cap is None else cap * jnp.tanh(products / cap)
        if score is not None:
            logits = join_score(score, self.fixed.score).apply(logits, self.b, self.n, i, j)
        return logits if bias is None else logits + bias

    def bias(self, smooth: Smooth, i: Span, j: Span) -> jax.Array | None:
        """The part of the bias that belongs to the block, with its axes of size 1."""
        return None if smooth.bias is None else window(smooth.bias, self.b, self.n, i, j).astype(smooth.q.dtype)

    def is_plain(self, smooth: Smooth) -> bool:
        """Whether the logits are the products themselves."""
        return self.plan.soft_cap is None and smooth.score is None and smooth.bias is None

    def never_empty(self, smooth: Smooth, i: Span, length_kv: int) -> bool:
        """Whether it is known at trace time that each query of the block may attend to some key."""
        if smooth.score is not None or (smooth.bias is not None and not self.plan.finite_bias):
            return False
        if self.mask is None:
            return True
        if not (self.mask.is_static and isinstance(i.start, int)):
            return False
        ranges = (self.mask.full_range(Span(row, 1), length_kv) for row in range(i.start, i.start + i.size))
        return all(lo < hi for lo, hi in ranges)

    def allowed(self, i: Span, j: Span, first_key: Any, masked: bool) -> jax.Array | None:
        """Boolean [G, i, j], or 1 in an axis: the mask on the block, and no key twice; None if all may be attended."""
        allowed = with_rank(self.mask.block(self.n, i, j), 3) if masked and self.mask is not None else None
        if first_key is None:
            return allowed
        fresh = (positions(j) >= first_key)[None, None]
        return fresh if allowed is None else allowed & fresh

    def blocked(self, logits: jax.Array, allowed: jax.Array, plain: bool) -> jax.Array:
        """The logits, and −∞ where they are not allowed.

        For static masks by addition, which XLA fuses with the product. It leaves NaN as it is, so only where the logits
        are plain products: what isn't finite in those is computed again.
        """
        if plain and self.mask is not None and self.mask.is_static:
            return logits + jnp.where(allowed, 0.0, -jnp.inf).astype(logits.dtype)
        return jnp.where(allowed, logits, -jnp.inf)

    def kept(self, length_q: int, i: Span, j: Span) -> jax.Array | None:
        """[G, i, j]: 1 / (1 − rate) for the weights that dropout keeps and 0 for the others, None without dropout."""
        rate = self.plan.dropout_rate
        if self.fixed.keep is not None:
            keep = window(self.fixed.keep, self.b, self.n, i, j)
        elif self.fixed.words is not None:
            keep = keep_bits(self.fixed.words, rate, self.b * self.plan.num_heads, length_q, self.n, i, j)
        else:
            return None
        return jnp.where(keep, 1.0 / (1.0 - rate), 0.0)


def head_of(plan: Plan, fixed: Fixed, x: jax.Array) -> Head:
    """The x-th of the B·K key/value heads."""
    b = x // plan.kv_heads
    mask = None if fixed.mask is None else fixed.mask.at(b)
    return Head(plan, b, x % plan.kv_heads * plan.group, fixed, mask)


def rows(array: jax.Array, i: Span) -> jax.Array:
    """[G, T, ·] → [G·i, ·]: the queries of a block, heads of a group one below the other."""
    block = lax.dynamic_slice_in_dim(array, i.start, i.size, axis=1)
    return block.reshape(-1, *block.shape[2:])


def put_rows(array: jax.Array, block: jax.Array, i: Span) -> jax.Array:
    """The inverse of `rows`: `array` with the block in its place."""
    shaped = block.reshape(array.shape[0], i.size, *array.shape[2:])
    return lax.dynamic_update_slice_in_dim(array, shaped, i.start, axis=1)


def split_score(score: Any) -> tuple[Any, Any]:
    """(its floating arrays, all the rest), None in the place of what the other has."""

    def pick(floating: bool) -> Any:
        return jax.tree.map(lambda a: a if jnp.issubdtype(a.dtype, jnp.floating) == floating else None, score)

    return (None, None) if score is None else (pick(True), pick(False))


def join_score(floating: Any, rest: Any) -> Any:
    return jax.tree.map(lambda a, b: b if a is None else a, floating, rest, is_leaf=lambda a: a is None)
