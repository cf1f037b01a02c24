"""A masked key has no influence on value or gradient; causal output ignores the future; weights of a row sum to 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..cases import MASKED, WEIGHTED, Case, Input
from ..inputs import B, S, T
from ..tolerances import close
from .run import along, axis_of, call, gradient, jitted, made, values

masked = pytest.mark.parametrize("name", [case.name for case in MASKED])
FAR = 1e4


def source_length(case: Case) -> int:
    return T if case.is_self else S


def unseen(keep: np.ndarray, key: int, is_self: bool) -> np.ndarray:
    """[T]: queries that may not attend to `key`; in self-attention not the position itself, whose query changes too."""
    blocked = ~keep[0, :, key]
    if is_self:
        blocked[key] = False
    return blocked


def changed(case: Case, inputs: tuple[Input, ...], key: int) -> tuple[np.ndarray, ...]:
    """The inputs with position `key` of keys and values moved far away."""
    arrays = [value.array.copy() for value in inputs]
    for source in case.sources:
        axes = inputs[source].axes
        axis = axis_of(axes, "T" if case.is_self else "S")
        index = (slice(None),) * axis + (key,)
        arrays[source][index] += FAR * np.linspace(0.5, 1.0, arrays[source].shape[-1], dtype=np.float32)
    return tuple(arrays)


KEEPS = {
    "padding": lambda length: np.broadcast_to(np.arange(length) < length - 2, (B, T, length)),
    "causal": lambda length: np.broadcast_to(np.tri(T, length, dtype=bool), (B, T, length)),
}


@masked
@pytest.mark.parametrize("kind", KEEPS)
def test_a_masked_key_has_no_influence(name, kind):
    case, module, inputs, _ = made(name)
    length = source_length(case)
    keep = KEEPS[kind](length)
    key = length - 1 if kind == "padding" else 3
    blocked = unseen(keep, key, case.is_self)
    assert blocked.any()
    _, arrays = values((), case.mask(keep))
    plain = jitted(name)(module, values(inputs, {})[0], arrays)
    moved = jitted(name)(module, changed(case, inputs, key), arrays)
    for ours, reference, axes in zip(moved, plain, case.output_axes, strict=True):
        rows = np.compress(blocked, np.asarray(ours), axis=axis_of(axes, "T"))
        assert np.array_equal(rows, np.compress(blocked, np.asarray(reference), axis=axis_of(axes, "T")))
    # The same test must see an influence where there is one.
    seen = np.asarray(moved[0]) != np.asarray(plain[0])
    assert seen.any() or kind == "padding" and not case.is_self

    cotangent = np.broadcast_to(along(case.output_axes[0], "T", blocked), plain[0].shape).astype(np.float32)
    grads = gradient(name)(values(inputs, {})[0], module, arrays, jnp.asarray(cotangent))
    for source in case.sources:
        axis = axis_of(inputs[source].axes, "T" if case.is_self else "S")
        at_key = np.take(np.asarray(grads[source]), key, axis=axis)
        assert not at_key.any()
        assert np.isfinite(np.asarray(grads[source])).all() and np.asarray(grads[source]).any()


@pytest.mark.parametrize("name", [case.name for case in WEIGHTED])
def test_rows_of_weights_sum_to_one(name):
    """Also where nothing may be attended: the brief's modules spread such a row, torch's make it NaN."""
    _, module, inputs, arrays = made(name)
    _, weights = jitted(name)(module, *values(inputs, arrays))
    assert close(jnp.sum(weights, axis=-1), jnp.ones(weights.shape[:-1]))
    assert np.asarray(weights).min() >= 0


@masked
def test_a_mask_that_keeps_everything_changes_nothing(name):
    case, module, inputs, _ = made(name)
    keep = np.ones((B, T, source_length(case)), bool)
    without = jitted(name)(module, values(inputs, {})[0], {})
    with_mask = jitted(name)(module, values(inputs, {})[0], values((), case.mask(keep))[1])
    assert all(close(ours, reference) for ours, reference in zip(with_mask, without, strict=True))


@masked
def test_masks_may_be_traced_inside_scan(name):
    """No Python decision hangs on a mask's values."""
    case, module, inputs, _ = made(name)
    keep = np.stack([KEEPS[kind](source_length(case)) for kind in KEEPS])
    stacked = {key: np.stack([case.mask(k)[key].array for k in keep]) for key in case.mask(keep[0])}

    def step(carry, arrays):
        return carry, call(case, module, values(inputs, {})[0], arrays)[0]

    _, outputs = jax.jit(lambda arrays: jax.lax.scan(step, 0, arrays))(stacked)
    for i in range(len(KEEPS)):
        arrays = {key: array[i] for key, array in stacked.items()}
        expected = jitted(name)(module, values(inputs, {})[0], arrays)
        assert close(outputs[i], expected[0])
