"""Checks of scale, heads, shapes, dtypes, weights and dropout."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .finding import Attend, Finding, equal_logits, judged, normalised, numbers, rows
from .target import Answer, Request

#: Logits that bfloat16 holds exactly and whose softmax, if every step is rounded to it, is off by 2.7 units.
EXACT_LOGITS = (0.0, 2.5, 0.0, 0.5)


def scale_default(attend: Attend) -> Finding:
    """q · k = 2 log 3 for the first of four keys, H = 4: weights 3 : 1 : 1 : 1 after 1/√H; N = 2."""
    came = rows(attend(Request(**_first_key(2 * math.log(3), heads=2))))
    shares = {"1": 9, "1/H": 3**0.5, "1/√(N H)": 3**0.5**0.5}
    known = {name: normalised([share, 1, 1, 1]) for name, share in shares.items()}
    return judged(came, normalised([3, 1, 1, 1]), known)


def scale_given(attend: Attend) -> Finding:
    came = rows(attend(Request(**_first_key(math.log(5)), scale=1.0)))
    return judged(came, normalised([5, 1, 1, 1]), {"ignored": normalised([5**0.5, 1, 1, 1])})


def grouped_heads(attend: Attend) -> Finding:
    """The values of kv head j are j."""
    arrays = equal_logits(2, 4, heads=2)
    v = arrays["v"] * 0 + jnp.arange(2.0)[:, None]
    came = rows(attend(Request(equal_logits(2, 4, heads=4)["q"], arrays["k"], v)))
    repeat, tile = (np.reshape(heads, (4, 1, 1)) for heads in ([0, 0, 1, 1], [0, 1, 0, 1]))
    return judged(came, repeat, {"tile, 0 1 0 1": tile})


def value_width(attend: Attend) -> Finding:
    arrays = equal_logits(2, 4)
    v = jnp.arange(12.0).reshape(1, 4, 1, 3)
    return judged(rows(attend(Request(arrays["q"], arrays["k"], v))), [4.5, 5.5, 6.5])


def no_batch_axis(attend: Attend) -> Finding:
    arrays = {name: array[0] for name, array in equal_logits(heads=2).items()}
    came = rows(attend(Request(**arrays)))
    return judged(came, 1 / 3) if came.shape == (2, 3, 3) else Finding(False, f"shape {came.shape}")


def two_batch_axes(attend: Attend) -> Finding:
    arrays = {name: array.reshape(2, 3, *array.shape[1:]) for name, array in equal_logits(batch=6).items()}
    example = np.arange(6.0, dtype=np.float32).reshape(2, 3, 1, 1, 1)
    return judged(rows(attend(Request(**{**arrays, "v": arrays["v"] * example}))), example / 3)


def output_dtype(attend: Attend) -> Finding:
    dtype = attend(Request(**equal_logits(dtype=jnp.bfloat16))).output.dtype
    return Finding(True) if dtype == jnp.bfloat16 else Finding(False, str(dtype))


def float16_jit(attend: Attend) -> Finding:
    output = jax.jit(lambda q, k, v: attend(Request(q, k, v)).output)(**equal_logits(dtype=np.float16))
    return judged(rows(Answer(output)), 1 / 3, tolerance=1e-3)


def logits_float32(attend: Attend) -> Finding:
    """Logits 32.25, 32.125, 32, 32: bfloat16 is spaced by 0.25 there, and by 0.5 before the scale."""
    arrays = equal_logits(1, 4, dtype=jnp.bfloat16)
    q = jnp.array([8, 1, 0, 0], jnp.bfloat16).reshape(1, 1, 1, 4)
    k = jnp.array([[8, second, 0, 0] for second in (0.5, 0.25, 0, 0)], jnp.bfloat16).reshape(1, 4, 1, 4)
    came = rows(attend(Request(q, k, arrays["v"])))
    expected = normalised(np.exp([0.25, 0.125, 0, 0]))
    rounded = {"rounded to bfloat16": normalised(np.exp([0.25, 0, 0, 0]))}
    return judged(came, expected, rounded, tolerance=2**-8)


def softmax_float32(attend: Attend) -> Finding:
    """Every weight is rounded once, when it is cast: half a unit of bfloat16 from the exact one, and a little."""
    arrays = equal_logits(1, 4, dtype=jnp.bfloat16)
    q = jnp.array([2, 0, 0, 0], jnp.bfloat16).reshape(1, 1, 1, 4)
    k = jnp.array([[logit, 0, 0, 0] for logit in EXACT_LOGITS], jnp.bfloat16).reshape(1, 4, 1, 4)
    came = rows(attend(Request(q, k, arrays["v"]))).reshape(-1)
    expected = normalised(np.exp(EXACT_LOGITS))
    units = np.abs(came - expected) / 2.0 ** (np.floor(np.log2(expected)) - 7)
    return Finding(True) if units.max() <= 0.51 else Finding(False, f"off by {units.max():.2g} units")


def float64(attend: Attend) -> Finding:
    answer = attend(Request(**_first_key(2 * math.log(3), dtype=jnp.float64)))
    if answer.output.dtype != jnp.float64:
        return Finding(False, f"output {answer.output.dtype}")
    error = np.abs(rows(answer) - normalised([3, 1, 1, 1])).max()
    return Finding(True) if error <= 1e-12 else Finding(False, f"error {error:.0e}")


def weights_values(attend: Attend) -> Finding:
    """One map for each head: head 0 is 3 : 1 : 1 : 1, head 1 equal."""
    arrays = _first_key(2 * math.log(3), heads=2)
    arrays["q"] = arrays["q"].at[:, :, 1].set(0.0)
    answer = attend(Request(**arrays, weights=True))
    came = np.asarray(answer.weights, np.float64)
    if came.shape != (1, 2, 2, 4):
        return Finding(False, f"shape {came.shape}")
    return judged(came, normalised([[3, 1, 1, 1], [1, 1, 1, 1]])[:, None])


def weights_asked(attend: Attend) -> Finding:
    return _with_and_without_weights(attend, jnp.float32, 1e-6)


def weights_asked_bfloat16(attend: Attend) -> Finding:
    return _with_and_without_weights(attend, jnp.bfloat16, 2**-8)


def dropout_scaling(attend: Attend) -> Finding:
    """Rate 3/4 on weights of 1/8: 0, or 4/8."""
    came = rows(attend(Request(**equal_logits(8, 8, batch=2, heads=2), dropout_rate=0.75)))
    found = np.unique(came.round(6))
    return Finding(True) if found.tolist() == [0, 0.5] else Finding(False, numbers(found))


def dropout_per_element(attend: Attend) -> Finding:
    """Sixty-four weights a map: that two independent maps are the same doesn't happen."""
    came = rows(attend(Request(**equal_logits(8, 8, batch=2, heads=2), dropout_rate=0.5))) > 0
    pairs = {
        "examples": (came[0], came[1]),
        "heads": (came[:, 0], came[:, 1]),
        "queries": (came[..., 0, :], came[..., 1, :]),
    }
    shared = [name for name, (one, other) in pairs.items() if np.array_equal(one, other)]
    return Finding(False, f"one draw for all {' and '.join(shared)}") if shared else Finding(True)


def dropout_weights(attend: Attend) -> Finding:
    answer = attend(Request(**equal_logits(8, 8, batch=2, heads=2), dropout_rate=0.5, weights=True))
    return judged(np.asarray(answer.weights, np.float64), 1 / 8, {"after dropout": rows(answer)})


def _first_key(product: float, *, heads: int = 1, dtype: Any = np.float32) -> dict[str, Any]:
    """q · k is that for the first of four keys and 0 for the others; H = 4, values the identity."""
    arrays = equal_logits(2, 4, heads=heads, dtype=dtype)
    q, k = (np.zeros(arrays[name].shape) for name in "qk")
    q[..., 0], k[:, 0, :, 0] = product, 1.0
    return {**arrays, "q": jnp.asarray(q.astype(dtype)), "k": jnp.asarray(k.astype(dtype))}


def _with_and_without_weights(attend: Attend, dtype: Any, allowed: float) -> Finding:
    """The output, on logits of some variety; values are at most 1."""
    shape = (2, 5, 2, 4)
    wave = np.arange(math.prod(shape)).reshape(shape)
    q, k, v = (jnp.asarray(np.sin(wave * step).astype(dtype)) for step in (1.3, 2.1, 3.7))
    plain, asked = (attend(Request(4 * q, k, v, weights=weights)) for weights in (False, True))
    if plain.output.dtype != asked.output.dtype:
        return Finding(False, f"{asked.output.dtype} with weights")
    difference = np.abs(rows(plain) - rows(asked)).max()
    return Finding(True) if difference <= allowed else Finding(False, f"differs by {difference:.1g}")
