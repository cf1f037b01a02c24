"""Problems drawn at random for the blockwise engine: one structure, and so one trace, for many values."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.core import masks
from jaxattn.core.problem import Problem, Result
from jaxattn.core.score_mod import ScoreMod

B, T, S, N, K, H, V = 2, 13, 11, 4, 2, 5, 3
LOGITS = (B, N, T, S)


class Drawing(NamedTuple):
    """`draw(rng)` gives the arguments of a Problem beside q, k, v and scale; the options are static."""

    draw: Callable[[np.random.Generator], dict[str, Any]]
    options: dict[str, Any]
    kv_heads: int = K


def lengths(rng):
    return rng.choice([0, 1, 5, S - 1, S], size=B)


def some(rng, *shape):
    """Booleans with rows that are all False, all True or mixed."""
    rows = (rng.random(shape) < 0.6) | (rng.random((*shape[:-1], 1)) < 0.2)
    return rows & (rng.random((*shape[:-1], 1)) < 0.8)


def bias(rng, *shape):
    """Normal, with −∞ here and there and in whole rows."""
    blocked = (rng.random(shape) < 0.15) | (rng.random((*shape[:-1], 1)) < 0.1)
    return np.where(blocked, -np.inf, rng.normal(size=shape))


def ids(rng, length):
    return np.sort(rng.integers(0, 4, size=(B, length)), axis=-1)


def near(b, n, i, j, reach):
    return abs(i - j) <= reach[b, n]


def shifted(logit, b, n, i, j, slopes, table, blocked):
    return jnp.where(blocked[i, j], -jnp.inf, logit * (1 + 0.1 * slopes[n]) + slopes[n] * (j - i) / 7 + table[b, i + j])


def score(rng):
    blocked = rng.random((T, S)) < 0.1
    return ScoreMod(shifted, (rng.normal(size=N), rng.normal(size=(B, T + S)), blocked))


def everything(rng):
    array, causal = masks.from_array(some(rng, *LOGITS)), masks.causal(rng.integers(-4, 6, size=B))
    mask = (array & masks.padding(lengths(rng))) | (causal & masks.segments(ids(rng, T), ids(rng, S)))
    return {"mask": mask, "bias": bias(rng, *LOGITS), "score_mod": score(rng)}


def drawn_dropout(rng):
    words = jax.random.wrap_key_data(jnp.asarray(rng.integers(0, 2**32, 2, dtype=np.uint32)))
    return {"mask": masks.from_array(some(rng, B, 1, T, S)), "bias": bias(rng, N, 1, S), "dropout_rng": words}


def given_dropout(rng):
    mask = masks.segments(rng.integers(0, 4, size=(B, T)), rng.integers(1, 5, size=(B, S)))
    return {"mask": mask, "dropout_mask": some(rng, N, T, S), "bias": bias(rng, T, 1)}


def predicate(rng):
    near_by = masks.from_predicate(near, rng.integers(0, 9, size=(B, N)))
    return {"mask": ~near_by & ~masks.padding(rng.integers(0, S, size=B)), "score_mod": score(rng)}


def band(rng):
    causal = masks.causal(rng.integers(-3, 4, size=B))
    return {"mask": causal & masks.sliding_window(4, 1) & masks.padding(lengths(rng))}


def multi_query(rng):
    mask = masks.prefix(rng.integers(0, S, size=B)) & masks.padding(lengths(rng))
    return {"mask": mask, "bias": bias(rng, B, 1, T, S)}


DRAWINGS = {
    "everything": Drawing(everything, {"soft_cap": 2.0}),
    "nothing": Drawing(lambda rng: {}, {}),
    "padding": Drawing(lambda rng: {"mask": masks.padding(lengths(rng))}, {"empty_row": "uniform"}),
    "drawn dropout": Drawing(drawn_dropout, {"empty_row": "uniform", "dropout_rate": 0.3}),
    "given dropout": Drawing(given_dropout, {"dropout_rate": 0.4}),
    "predicate": Drawing(predicate, {}),
    "band": Drawing(band, {"empty_row": "nan"}),
    "multi-query": Drawing(multi_query, {"soft_cap": 1.5, "empty_row": "uniform"}, 1),
    "static masks": Drawing(
        lambda rng: {"mask": (masks.prefix(2) | masks.causal(-2)) & masks.sliding_window(5, None)},
        {"empty_row": "uniform"},
    ),
}


def problem_of(drawing: Drawing, rng: np.random.Generator) -> Problem:
    q = rng.normal(size=(B, T, N, H))
    k, v = (rng.normal(size=(B, S, drawing.kv_heads, width)) for width in (H, V))
    problem = Problem(q, k, v, rng.normal(), **drawing.draw(rng), **drawing.options)
    return jax.tree.map(jnp.asarray, problem)


def smooth_parts(problem: Problem) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Problem]]:
    """All that has a derivative, and the problem made of it again."""
    parts = {name: getattr(problem, name) for name in ("q", "k", "v", "scale", "bias")}
    mod = problem.score_mod
    if mod is not None:
        parts["score"] = mod.arrays[:2]

    def again(parts: dict[str, Any]) -> Problem:
        arrays = {name: part for name, part in parts.items() if name != "score"}
        changed = None if mod is None else ScoreMod(mod.fn, (*parts["score"], *mod.arrays[2:]))
        return replace(problem, **arrays, score_mod=changed)

    return parts, again


def results_and_gradients(attention: Callable[[Problem], Result], problem: Problem, cotangents: Any) -> tuple[Any, Any]:
    """((output, m, l), gradients), the cotangents being those of output, m and l."""
    parts, again = smooth_parts(problem)
    results, pull = jax.vjp(lambda parts: attention(again(parts))[:3], parts)
    return results, pull(cotangents)[0]


def difference(got: Any, reference: Any) -> float:
    """Largest |got − reference| / max(1, max|reference|) of all arrays; ∞ where one is not finite as the other is."""
    worst = 0.0
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(reference), strict=True):
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        finite = np.isfinite(theirs)
        if ours.shape != theirs.shape or not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
            return np.inf
        if not np.isfinite(ours[finite]).all():
            return np.inf
        gap = np.abs(ours[finite] - theirs[finite]).max(initial=0.0)
        worst = max(worst, float(gap / max(1.0, np.abs(theirs[finite]).max(initial=0.0))))
    return worst
