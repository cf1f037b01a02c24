"""`jax.export` with symbolic sizes: one program for all batches, and for all lengths that an implementation takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxattn import dot_product_attention, explain_dispatch
from jaxattn.core import masks

from ..errors import refuses
from ..inputs import generator
from ..tolerances import close

N, K, H = 2, 1, 4
LONG = 160


def scaled(logit, b, n, i, j):
    return logit * 0.5


MASKS = {
    "none": lambda q, k, lengths: None,
    "window": lambda q, k, lengths: masks.sliding_window(2, 1, offset=1) & masks.padding(lengths),
    "prefix": lambda q, k, lengths: masks.prefix(2) | masks.padding(np.array(3)),
    "segments": lambda q, k, lengths: masks.segments(jnp.zeros(q.shape[:2], int), jnp.zeros(k.shape[:2], int)),
    "predicate": lambda q, k, lengths: masks.from_predicate(lambda b, n, i, j: i >= j),
}


def program(kind, **options):
    """Output and gradients."""

    def run(q, k, v, lengths):
        def attend(q, k, v):
            return dot_product_attention(q, k, v, mask=MASKS[kind](q, k, lengths), **options).output

        output, pull = jax.vjp(attend, q, k, v)
        return output, *pull(jnp.cos(output))

    return jax.jit(run)


def described(batch, length_q, length_kv):
    scope = export.SymbolicScope()
    shapes = (f"{batch}, {length_q}, {N}, {H}", *(f"{batch}, {length_kv}, {K}, {H}",) * 2)
    arrays = [jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.float32) for shape in shapes]
    return [*arrays, jax.ShapeDtypeStruct(arrays[0].shape[:1], jnp.int32)]


def inputs(batch, length_q, length_kv):
    rng = generator("export")
    shapes = ((batch, length_q, N, H), *((batch, length_kv, K, H),) * 2)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    return [*arrays, jnp.asarray([length_kv, 0, 3][:batch], jnp.int32)]


SYMBOLIC = [
    ("none", ("b", "t", "s"), (3, 5, 7), {}),
    ("window", ("b", "t", "s"), (2, 5, 7), {"empty_row": "uniform", "soft_cap": 2.0, "score_mod": scaled}),
    ("prefix", ("b", "t", "t"), (3, 5, 5), {"dropout_rate": 0.3, "dropout_rng": jax.random.key(1)}),
    ("segments", ("b", "t", "s"), (3, 5, 7), {}),
    ("predicate", ("b", "5", "s"), (3, 5, 7), {}),
    ("window", ("b", str(LONG), str(LONG)), (3, LONG, LONG), {}),
    ("predicate", ("b", str(LONG), str(LONG)), (2, LONG, LONG), {"implementation": "blockwise"}),
    ("window", ("b", "1", "s"), (3, 1, 7), {"implementation": "decode"}),
]


@pytest.mark.parametrize(("kind", "names", "sizes", "options"), SYMBOLIC)
def test_one_program_for_all_sizes(kind, names, sizes, options):
    run = program(kind, **options)
    exported = export.export(run)(*described(*names))
    arguments = inputs(*sizes)
    for ours, expected in zip(exported.call(*arguments), run(*arguments), strict=True):
        assert close(ours, expected)


def test_what_serves_a_symbolic_length_and_what_does_not():
    q, k, v, _ = described("b", "t", "s")
    found = explain_dispatch(q, k, v)
    assert found.chosen == "dense" and "symbolic" in found.refused["blockwise"] and "symbolic" in found.refused["cudnn"]
    long = described("b", str(LONG), str(LONG))[:3]
    assert explain_dispatch(*long).chosen == "blockwise"
    with refuses(NotImplementedError, "blocks need lengths that are known when the call is traced"):
        export.export(program("none", implementation="blockwise"))(*described("b", "t", "s"))


def test_a_shape_in_an_error_names_its_symbols():
    q, k, v, lengths = described("b", "t", "s")
    wrong = jax.ShapeDtypeStruct((*k.shape[:-1], H + 1), jnp.float32)
    with refuses(ValueError, r"got q \(b, t, 2, 4\), k \(b, s, 1, 5\)"):
        export.export(program("none"))(q, wrong, v, lengths)
