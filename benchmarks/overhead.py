"""What a call costs beside its arithmetic: one small deep model, called in every way that NNX offers and in ours.

The program is the same in all of them, so the bare call, `jax.jit` over a tuple of arrays, is the floor.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxattn
from jaxattn.conditions import BusyElsewhere, duration, factor
from jaxattn.interleaved import COMPILED, Timing, interleave, ratio
from jaxattn.plots.speed import plot_speed

from .conditions import FULL, QUICK, announce, options, print_timing, save, state
from .ratios import Verdict, print_verdicts

BARE = "bare jax.jit"
WIDTH, HEADS, HIDDEN = 64, 4, 128
BATCH, LENGTH = 1, 4
MOST_S, MOST_OVER_BARE = 0.4e-3, 2.0
#: Largest difference between two ways to call the same program.
BOUND = 1e-5


def main(argv: list[str]) -> int:
    """0, or 1 if two ways give different results (nothing is written then) or a full run misses a target."""
    given = options("overhead", __doc__, argv)
    model, x = make_model(layers=2 if given.quick else 12)
    candidates = ways(model, x)
    if not agree(candidates):
        return 1
    elsewhere = BusyElsewhere()
    timings = interleave(candidates, **(QUICK if given.quick else FULL))
    arrays = len(jax.tree.leaves(nnx.state(model)))
    stated = {"rounds": timings[BARE].n, "cores_busy_elsewhere": elsewhere.cores()}
    over = {name: vars(ratio(timing, timings[BARE])) for name, timing in timings.items() if name != BARE}
    times = {name: timing.to_json() for name, timing in timings.items()}
    result = {"label": f"{arrays} arrays", "arrays": arrays, "timings": times, "over_bare": over, "conditions": stated}
    print(f"{arrays} arrays, {BATCH} × {LENGTH} tokens, width {WIDTH}: results agree")
    for name, timing in times.items():
        print_timing(name, timing, f"  {factor(over[name]['median'])} the bare call" if name in over else "")
    verdicts = judge(timings)
    met = print_verdicts(verdicts)
    title = f"One call of an encoder of {len(model.layers)} layers"
    inputs = f"batch {BATCH}, length {LENGTH}, width {WIDTH}, {arrays} parameters"
    facts = state([result], given, title=title, inputs=inputs, dtype="float32")
    data = {"conditions": facts, "targets": [verdict.to_json() for verdict in verdicts], "results": [result]}
    if save("overhead", data, given):
        plot_speed({result["label"]: times}, given.out / "overhead.png", title=title, conditions=facts, force=True)
    return 0 if met or given.quick else 1


def make_model(layers: int) -> tuple[Any, jax.Array]:
    """An encoder whose arithmetic takes next to no time, and its input."""
    rngs = nnx.Rngs(0)
    layer = jaxattn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True, rngs=rngs)
    return jaxattn.TransformerEncoder(layer, layers), jnp.ones((BATCH, LENGTH, WIDTH), jnp.float32)


def ways(model: Any, x: jax.Array) -> dict[str, Callable[[], Any]]:
    """The same call in every way; what can be done once, before the calls, is."""
    leaves, structure = jax.tree.flatten(model)
    graphdef, parameters = nnx.split(model)

    def apply(module: Any, inputs: jax.Array) -> jax.Array:
        return module(inputs)

    bare = jax.jit(lambda arrays, inputs: apply(jax.tree.unflatten(structure, arrays), inputs))
    merged = jax.jit(lambda state, inputs: apply(nnx.merge(graphdef, state), inputs))
    nnx_jit, jax_jit, compiled = nnx.jit(apply), jax.jit(apply), jaxattn.compile(model)
    arrays = tuple(leaves)
    return {
        BARE: lambda: bare(arrays, x),
        COMPILED: lambda: compiled(x),
        "jax.jit over the state": lambda: merged(parameters, x),
        "jax.jit over the module": lambda: jax_jit(model, x),
        "nnx.jit": lambda: nnx_jit(model, x),
    }


def agree(candidates: Mapping[str, Callable[[], Any]]) -> bool:
    """Whether all give the results of the bare call; says which don't."""
    expected = np.asarray(candidates[BARE]())
    differences = {name: float(np.max(np.abs(np.asarray(call()) - expected))) for name, call in candidates.items()}
    wrong = {name: difference for name, difference in differences.items() if not difference <= BOUND}
    for name, difference in wrong.items():
        announce(f"{name} differs from {BARE} by {difference:.1e}, allowed {BOUND:.0e}, so no time is given.")
    return not wrong


def judge(timings: Mapping[str, Timing]) -> list[Verdict]:
    seconds = timings[COMPILED].median
    over = ratio(timings[COMPILED], timings[BARE]).median
    return [
        Verdict(f"one call through {COMPILED}", seconds, MOST_S, False, "s"),
        Verdict(f"the same over {BARE} ({duration(timings[BARE].median)})", over, MOST_OVER_BARE, False),
    ]
