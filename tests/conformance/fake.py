"""A library that keeps to every rule, in plain NumPy, and breaks one when told to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.conformance import Answer, NotOffered, Request


class Fake:
    """softmax(q kᵀ · scale + bias, where mask) v, one fault at a time.

    Args:
        fault: what is broken.
        xp: numpy, or jax.numpy where a check differentiates or jits.
    """

    name = "fake"

    def __init__(self, fault: str = "", xp: Any = np):
        self.fault, self.xp = fault, xp

    def attend(self, request: Request) -> Answer:
        xp, fault = self.xp, self.fault
        if fault == "nothing offered":
            raise NotOffered("no attention")
        if fault == "refuses float16" and request.q.dtype == np.float16:
            raise ValueError("float16 is too narrow\nfor us")
        q, k, v = (xp.asarray(array) for array in (request.q, request.k, request.v))
        dtype = q.dtype
        wide = np.float64 if dtype == np.float64 and fault != "narrow softmax" else np.float32
        groups = q.shape[-2] // k.shape[-2]
        spread = xp.tile if fault == "tiled heads" else None
        k, v = (xp.tile(a, (groups, 1)) if spread else xp.repeat(a, groups, axis=-2) for a in (k, v))
        logits = xp.einsum("...tnh,...snh->...nts", q.astype(wide), k.astype(wide)) * self._scale(request)
        if fault == "rounded logits":
            logits = logits.astype(dtype).astype(wide)
        if request.bias is not None:
            bias = xp.asarray(request.bias)
            logits = xp.where(bias != 0, logits, -np.inf) if fault == "boolean bias" else logits + bias
        weights = self._softmax(logits, self._rule(request, logits), dtype, request)
        kept = self._dropped(weights, request)
        output = xp.einsum("...nts,...snv->...tnv", kept.astype(dtype).astype(wide), v.astype(wide))
        weights = kept if fault == "dropped weights" else weights
        weights = weights.mean(-3) if fault == "averaged weights" else weights
        return Answer(self._spoiled(output, v).astype(self._dtype(dtype)), weights if request.weights else None)

    def _scale(self, request: Request) -> float:
        default = 1.0 if self.fault == "no scale" else request.q.shape[-1] ** -0.5
        default *= 1.01 if self.fault == "other with weights" and request.weights else 1.0
        return default if request.scale is None or self.fault == "given scale ignored" else request.scale

    def _rule(self, request: Request, logits: Any) -> Any:
        """Who may attend, as the logits' shape."""
        xp, fault = self.xp, self.fault
        length_q, length_kv = logits.shape[-2:]
        rule = xp.ones(logits.shape, bool)
        if request.mask is not None and fault != "mask ignored":
            mask = xp.asarray(request.mask)
            if mask.dtype != bool and fault != "float mask taken":
                raise TypeError("the mask must be boolean")
            mask = mask.swapaxes(0, 1) if fault == "swapped mask" else mask
            rule = rule & ((mask == 0) if fault == "inverted mask" else (mask != 0))
        if request.causal and not (fault == "not causal with weights" and request.weights):
            rule = rule & np.tri(
                length_q, length_kv, length_kv - length_q if fault == "bottom-right" else 0, dtype=bool
            )
        if request.window is not None and fault != "window ignored":
            left, right = request.window
            distance = np.arange(length_kv) - np.arange(length_q)[:, None]
            rule = rule & (distance >= -left) & (distance <= right)
        if request.lengths is not None and fault != "lengths ignored":
            rule = rule & (np.arange(length_kv) < np.asarray(request.lengths)[:, None, None, None])
        return rule

    @np.errstate(all="ignore")
    def _softmax(self, logits: Any, rule: Any, dtype: Any, request: Request) -> Any:
        xp, fault = self.xp, self.fault
        if fault == "fill overflows":
            logits = (logits.astype(dtype) + (~rule).astype(dtype) * np.asarray(-1e9).astype(dtype)).astype(np.float32)
        elif fault == "small fill":
            logits = logits + xp.where(rule, 0.0, -1e4)
        elif fault == "unsafe gradient":
            logits = logits + xp.where(rule, 0.0, -np.inf)
        elif fault in ("finite fill", "plain softmax"):
            logits = xp.where(rule, logits, -1e30 if fault == "finite fill" else -np.inf)
        else:
            rule = rule & (logits != -np.inf)
            logits = xp.where(rule, logits, -1e30)
        rounded = fault == "rounded softmax" or (fault == "rounded softmax with weights" and request.weights)
        narrow = dtype if rounded else logits.dtype
        powers = xp.exp(logits - logits.max(-1, keepdims=True)).astype(narrow)
        weights = (powers / powers.sum(-1, keepdims=True).astype(narrow)).astype(logits.dtype)
        if fault == "unsafe gradient":
            return xp.where(rule.any(-1, keepdims=True), weights, 0.0)
        kept_fills = ("fill overflows", "small fill", "finite fill", "plain softmax")
        return weights if fault in kept_fills else xp.where(rule, weights, 0.0)

    def _dropped(self, weights: Any, request: Request) -> Any:
        if not request.dropout_rate:
            return weights
        shape = weights.shape[-2:] if self.fault == "one draw" else weights.shape
        keep = np.random.default_rng(request.seed).random(shape) >= request.dropout_rate
        return weights * keep / (1.0 if self.fault == "unscaled dropout" else 1.0 - request.dropout_rate)

    def _spoiled(self, output: Any, v: Any) -> Any:
        if self.fault == "NaN spreads":
            return output + 0.0 * v.sum()
        if self.fault == "gradient leaks":
            return output + v.sum() - jax.lax.stop_gradient(v.sum())
        if self.fault == "examples mixed":
            return self.xp.roll(output, 1, axis=0)
        if self.fault == "features reversed":
            return output[..., ::-1]
        return output[None] if self.fault == "a batch axis too many" else output

    def _dtype(self, dtype: Any) -> Any:
        return np.float32 if self.fault == "output float32" else dtype


JAX = {"empty_row_gradients", "blocked_gradients", "float16_jit"}


def fake_for(check: str, fault: str = "") -> Fake:
    """One that the check can differentiate, if it does that."""
    return Fake(fault, jnp if check in JAX else np)
