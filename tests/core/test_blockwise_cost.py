"""What the blockwise implementation does not do: hold all logits, compute blocked ones, or any of them twice."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import blockwise_derivatives, blockwise_forward, linear, masks
from jaxattn.core.blockwise import blockwise_attention
from jaxattn.core.index_functions import Span
from jaxattn.core.problem import Problem
from jaxattn.core.schedule import Schedule, over_keys, over_queries
from jaxattn.core.tuning import schedules

from ..inputs import B, S, T
from .mask_kinds import EVERY, KINDS, WHOLE, example

LONG = 4096


def near(b, n, i, j):
    return (i - j) % 7 < 3


def total(q, k, v, mask):
    return blockwise_attention(Problem(q, k, v, 0.5, mask=mask)).output.sum()


def changed(q, k, v, mask):
    return jax.jvp(lambda q, k, v: total(q, k, v, mask), (q, k, v), (k, q, v))[1]


gradient = jax.grad(total, (0, 1, 2))


MODES = {"forward": total, "jvp": changed, "grad": gradient}

MASKS = {
    "causal": masks.causal(),
    "padding": masks.padding(np.array([100, 900])),
    "predicate": masks.from_predicate(near),
}


def inner(jaxpr: Any) -> Any:
    """All equations, those of inner jaxprs and of linear functions included."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name == "jaxattn_linear":
            avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
            yield from inner(jax.make_jaxpr(partial(linear._implementation, **equation.params))(*avals).jaxpr)
        for part in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns")):
            if hasattr(part, "eqns"):
                yield from inner(getattr(part, "jaxpr", part))


def largest(function: Any, *arguments: Any) -> tuple[int, str]:
    """The most elements of any array that comes into being, and what makes it."""
    found = (
        (int(np.prod(var.aval.shape)), f"{equation.primitive} {var.aval}")
        for equation in inner(jax.make_jaxpr(function)(*arguments).jaxpr)
        for var in equation.outvars
        if hasattr(var.aval, "shape")
    )
    return max(found)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("mode", MODES)
def test_no_intermediate_has_all_logits(mode, kind):
    q = jax.ShapeDtypeStruct((2, LONG, 1, 8), jnp.float32)
    elements, made_by = largest(MODES[mode], q, q, q, MASKS[kind])
    assert elements < LONG * LONG // 4, made_by


def test_the_walk_sees_what_dense_makes():
    q = jax.ShapeDtypeStruct((64, 1, 8), jnp.float32)
    product = jax.jit(lambda q, k: jax.lax.map(lambda a: a @ k[:, 0].T, q[:, None, 0]))
    assert largest(product, q, q)[0] == 64 * 64
    assert largest(lambda q, k: jax.checkpoint(lambda q: (q[:, 0] @ k[:, 0].T).sum())(q), q, q)[0] == 64 * 64


@pytest.mark.parametrize("mode", ["forward", "grad"])
def test_memory_is_linear_in_the_length(mode):
    schedule = Schedule(1, 64, 128, 4)

    def loss(q, k, v):
        return blockwise_attention(Problem(q, k, v, 0.5, mask=masks.causal()), (schedule, schedule)).output.sum()

    def bytes_of(length: int) -> int:
        q = jax.ShapeDtypeStruct((length, 2, 16), jnp.float32)
        lowered = jax.jit(loss if mode == "forward" else jax.grad(loss, (0, 1, 2))).lower(q, q, q)
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": "0"})
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    short, long = bytes_of(1024), bytes_of(2048)
    assert long <= 2.3 * short and long < 2048**2 * 4 / 3, (short, long)


def area(schedule: Schedule, mask: Any, length: int = LONG) -> int:
    """Logits that are computed."""

    def one_block(total, i, first):
        def step(state, j, *_):
            return (0 if state is None else state) + i.size * j.size

        return total + over_keys(schedule, mask, i, length, jnp.int32(0), step)

    return int(jax.jit(lambda: over_queries(schedule, mask, length, jnp.int32(0), one_block))())


LONG_ONE = jax.ShapeDtypeStruct((LONG, 8, 64), jnp.float32)
CHOSEN = schedules(Problem(LONG_ONE, LONG_ONE, LONG_ONE, 0.1, mask=masks.causal()))


@pytest.mark.parametrize(
    "schedule",
    [Schedule(1, 256, 256, 0), Schedule(1, 512, 512, 0), Schedule(1, 512, 2048, 8), *CHOSEN],
)
def test_causal_computes_half(schedule):
    assert area(schedule, None) == LONG * LONG
    assert 0.5 < area(schedule, masks.causal()) / LONG**2 <= 0.6


@pytest.mark.parametrize("schedule", [Schedule(1, 128, 128, 0), Schedule(1, 128, 512, 99)])
def test_a_window_computes_no_more_for_a_longer_sequence(schedule):
    """W + 1 keys of each query, and what blocks and alignment add."""
    left, right = 200, 50
    for length in (2048, LONG):
        per_query = area(schedule, masks.sliding_window(left, right), length) / length
        assert left + right < per_query <= left + right + 1 + schedule.queries + 2 * 128


SCHEDULES = [Schedule(1, 2, 3, 0), Schedule(1, 3, 2, 9)]


@EVERY
def test_every_open_logit_is_visited_once(name):
    """And those of a step without a mask are all open; also where the last blocks overlap."""
    kind = KINDS[name]

    @jax.jit
    def visits(b):
        mask = example(kind.mask, b)

        def count(schedule):
            def one_block(counts, i, first):
                fresh_rows = jnp.arange(i.size) + i.start >= (0 if first is None else first)

                def step(state, j, first_key, masked):
                    current = counts if state is None else state
                    fresh = jnp.arange(j.size) + j.start >= (0 if first_key is None else first_key)
                    seen = (fresh_rows[:, None] & fresh).astype(jnp.int32)
                    place = (jnp.int32(masked), jnp.asarray(i.start), jnp.asarray(j.start))
                    block = jax.lax.dynamic_slice(current, place, (1, i.size, j.size))
                    return jax.lax.dynamic_update_slice(current, block + seen, place)

                return over_keys(schedule, mask, i, S, counts, step)

            return over_queries(schedule, mask, T, jnp.zeros((2, T, S), jnp.int32), one_block)

        return [count(schedule) for schedule in SCHEDULES]

    for b in range(B):
        open_to_any, open_to_all = WHOLE[name][b].any(axis=0), WHOLE[name][b].all(axis=0)
        for counts in map(np.asarray, visits(b)):
            times = counts.sum(axis=0)
            assert times.max() <= 1 and (times[open_to_any] == 1).all()
            assert open_to_all[counts[0] == 1].all()


PASSES = {"forward": (blockwise_forward, "_step"), "grad": (blockwise_derivatives, "_backward_step")}


@pytest.mark.parametrize("mode", PASSES)
def test_steps_of_each_example_are_those_of_its_length(mode, monkeypatch):
    """Counted as they run, in one batched call."""
    module, name = PASSES[mode]
    original, seen = getattr(module, name), []

    def spy(head, *arguments):
        i = next(argument for argument in arguments if isinstance(argument, Span))
        jax.debug.callback(lambda b, start: seen.append((int(b), int(start))), head.b, jnp.asarray(i.start))
        return original(head, *arguments)

    monkeypatch.setattr(module, name, spy)
    size, lengths = 2, np.array([0, 3, 11])
    sizes = (Schedule(1, 5, size, 7), Schedule(1, 5, size, 7))  # of no other test: traces are kept
    q, k = jnp.ones((3, 5, 2, 4)), jnp.ones((3, 11, 2, 4))

    def loss(q, k, v):
        return blockwise_attention(Problem(q, k, v, 0.5, mask=masks.padding(lengths)), sizes).output.sum()

    jax.block_until_ready((loss if mode == "forward" else jax.grad(loss, (0, 1, 2)))(q, k, k))
    jax.effects_barrier()
    steps = Counter(b for b, _ in seen)
    assert steps == {b: 2 * -(-length // size) for b, length in enumerate(lengths) if length}
