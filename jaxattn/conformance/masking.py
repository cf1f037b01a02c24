"""Checks of masks, causality, empty rows and bias. Expected values are weights of equal logits, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from .finding import Attend, Finding, equal_logits, judged, normalised, rows
from .target import Request

LOWER = np.tri(3, dtype=bool)
EMPTY_ROW = np.array([[True, True, False], [False, False, False], [True, False, True]])
KEPT = np.array([True, False, True])  # key 1 is blocked


def mask_polarity(attend: Attend) -> Finding:
    mask = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    came = rows(attend(Request(**equal_logits(), mask=_whole(mask))))
    return judged(came, normalised(mask), {"True blocks": normalised(~mask), "mask ignored": 1 / 3})


def mask_by_head(attend: Attend) -> Finding:
    """Example b and head n see key 2b + n alone."""
    expected = np.eye(4).reshape(2, 2, 1, 4)
    mask = jnp.asarray(np.broadcast_to(expected == 1, (2, 2, 4, 4)))
    came = rows(attend(Request(**equal_logits(4, 4, batch=2, heads=2), mask=mask)))
    return judged(came, expected, {"examples and heads swapped": expected.swapaxes(0, 1)})


def float_mask(attend: Attend) -> Finding:
    """0 and −1e9, as PyTorch code adds them; keys 0 and 2 are meant to be seen."""
    additive = np.where(KEPT, 0.0, -1e9).astype(np.float32)
    try:
        came = rows(attend(Request(**equal_logits(), mask=_whole(additive))))
    except (TypeError, ValueError):
        return Finding(True)
    kinds = {"non-zero = may attend": [0, 1, 0], "added": [0.5, 0, 0.5]}
    return Finding(False, judged(came, np.nan, kinds).came)


def empty_row(attend: Attend) -> Finding:
    came = rows(attend(Request(**equal_logits(), mask=_whole(EMPTY_ROW))))
    return _empty(came, EMPTY_ROW)


def empty_row_by_bias(attend: Attend) -> Finding:
    bias = np.where(EMPTY_ROW, 0.0, -np.inf).astype(np.float32)
    return _empty(rows(attend(Request(**equal_logits(), bias=_whole(bias)))), EMPTY_ROW)


def empty_row_gradients(attend: Attend) -> Finding:
    """Of a loss over the other rows."""
    arrays = equal_logits()
    mask = _whole(EMPTY_ROW)

    def loss(q, k, v):
        return attend(Request(q, k, v, mask=mask)).output[:, jnp.array([0, 2])].sum()

    gradients = jax.grad(loss, argnums=(0, 1, 2))(*(arrays[name] + 0.5 for name in "qkv"))
    broken = [f"d{name}" for name, gradient in zip("qkv", gradients, strict=True) if not jnp.isfinite(gradient).all()]
    return Finding(False, f"not finite: {', '.join(broken)}") if broken else Finding(True)


def float16_mask(attend: Attend) -> Finding:
    request = Request(**equal_logits(dtype=np.float16), mask=_whole(LOWER))
    return judged(rows(attend(request)), normalised(LOWER), {"NaN": np.nan}, tolerance=1e-3)


def causal_alignment(attend: Attend) -> Finding:
    """Fewer queries than keys, then more."""
    for length_q, length_kv in ((2, 4), (5, 2)):
        came = rows(attend(Request(**equal_logits(length_q, length_kv), causal=True)))
        first, last = (normalised(np.tri(length_q, length_kv, offset)) for offset in (0, length_kv - length_q))
        finding = judged(came, first, {"bottom-right": last, "ignored": 1 / length_kv})
        if not finding.ok:
            return Finding(False, f"{finding.came} for T = {length_q}, S = {length_kv}")
    return Finding(True)


def causal_and_mask(attend: Attend) -> Finding:
    came = rows(attend(Request(**equal_logits(), causal=True, mask=_whole(KEPT))))
    known = {"mask ignored": normalised(LOWER), "causal ignored": normalised(KEPT)}
    return judged(came, normalised(LOWER & KEPT), known)


def causal_padding_weights(attend: Attend) -> Finding:
    """Output and weights where they are asked for, and the mask is one of padding, [B, 1, 1, S]."""
    padding = jnp.asarray(KEPT[None, None, None])
    answer = attend(Request(**equal_logits(), causal=True, mask=padding, weights=True))
    expected = normalised(LOWER & KEPT)
    known = {"mask ignored": normalised(LOWER), "causal ignored": normalised(KEPT)}
    output = judged(rows(answer), expected, known)
    return output if not output.ok else judged(np.asarray(answer.weights, np.float64), expected, known)


def window(attend: Attend) -> Finding:
    came = rows(attend(Request(**equal_logits(4, 4), window=(1, 1))))
    band = np.tri(4, 4, 1) - np.tri(4, 4, -2)
    return judged(came, normalised(band), {"ignored": 1 / 4})


def lengths(attend: Attend) -> Finding:
    came = rows(attend(Request(**equal_logits(4, 4, batch=2), lengths=jnp.array([2, 4], jnp.int32))))
    return judged(came, normalised([[1, 1, 0, 0], [1, 1, 1, 1]])[:, None, None], {"ignored": 1 / 4})


def bias(attend: Attend) -> Finding:
    """log 1, log 2, log 3: weights in these proportions."""
    came = rows(attend(Request(**equal_logits(), bias=_whole(np.log([1, 2, 3]).astype(np.float32)))))
    return judged(came, normalised([1, 2, 3]), {"ignored": 1 / 3, "taken as a boolean": [0, 0.5, 0.5]})


def blocked_values(attend: Attend) -> Finding:
    """A blocked key and its value become large."""
    arrays = equal_logits()
    k, v = arrays["k"].at[:, 1].set(1e4), arrays["v"].at[:, 1].set(1e6)
    came = rows(attend(Request(arrays["q"] + 1.0, k, v, mask=_whole(KEPT))))
    return judged(came, normalised([1, 0, 1]))


def blocked_nan(attend: Attend) -> Finding:
    """NaN in a blocked value: 0 · NaN is NaN, but not for another example."""
    arrays = equal_logits(batch=2)
    arrays["v"] = arrays["v"].at[0, 1].set(jnp.nan)
    came = rows(attend(Request(**arrays, mask=_whole(KEPT, batch=2))))
    expected = normalised([1, 0, 1])
    if not (other := judged(came[1], expected)).ok:
        return Finding(False, f"the other example: {other.came}")
    if judged(came[0], expected).ok:
        return Finding(True, "no influence")
    return Finding(True, "NaN") if np.isnan(came[0]).any() else judged(came[0], expected)


def blocked_gradients(attend: Attend) -> Finding:
    arrays = equal_logits()
    mask = _whole(KEPT)
    ramp = jnp.asarray(np.arange(9.0, dtype=np.float32).reshape(1, 3, 1, 3))

    def loss(k, v):
        return (attend(Request(arrays["q"] + 1.0, k, v, mask=mask)).output * ramp).sum()

    gradients = jax.grad(loss, argnums=(0, 1))(arrays["k"], arrays["v"])
    wrong = [f"d{name}" for name, gradient in zip("kv", gradients, strict=True) if jnp.any(gradient[:, 1] != 0.0)]
    return Finding(False, f"not 0: {', '.join(wrong)}") if wrong else Finding(True)


def _whole(rule: np.ndarray, batch: int = 1) -> jax.Array:
    """A mask or bias [S] or [T, S] as [B, 1, T, S] with T = S = 3."""
    return jnp.asarray(np.broadcast_to(rule, (batch, 1, 3, 3)))


def _empty(came: np.ndarray, mask: np.ndarray) -> Finding:
    """The other rows are what they must be; of the empty one, what it is."""
    expected = normalised(mask)
    known = {name: np.where(mask.any(-1, keepdims=True), expected, value) for name, value in _EMPTY_ROWS.items()}
    return judged(came, expected, known)


_EMPTY_ROWS = {"uniform": 1 / 3, "NaN": np.nan}
