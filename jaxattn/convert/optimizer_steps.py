"""torch.optim's steps where optax's nearest computes something else, as optax transformations.

Each gives what torch multiplies by the learning rate; scalars are computed in float64, as torch does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

#: A constant, or a function of the schedule's step.
Momentum = float | Callable[[Any], Any]


class MomentumState(NamedTuple):
    """SGD. `begun`: the first gradient is taken whole, later ones are damped."""

    schedule_count: Any
    begun: Any
    trace: Any


class AdamState(NamedTuple):
    """`nu_max` is None without amsgrad."""

    count: Any
    schedule_count: Any
    mu: Any
    nu: Any
    nu_max: Any


class NAdamState(NamedTuple):
    """`mu_product` in the dtype that torch keeps it in, float32 by default."""

    count: Any
    schedule_count: Any
    mu_product: Any
    mu: Any
    nu: Any


class RMSpropState(NamedTuple):
    """`mean` is None unless centered, `trace` without momentum."""

    schedule_count: Any
    square: Any
    mean: Any
    trace: Any


class AdagradState(NamedTuple):
    """`total` of the squares."""

    count: Any
    total: Any


def _zero() -> jax.Array:
    return jnp.zeros((), jnp.int32)


def _at(momentum: Momentum, count: Any) -> Any:
    """As a scalar, in float64; call it with 64-bit types on."""
    return jnp.asarray(momentum(count) if callable(momentum) else momentum, jnp.float64)


def _mix(old: Any, new: Any, weight: Any) -> Any:
    """old + weight · (new − old), parameter by parameter."""
    return jax.tree.map(lambda a, b: a + weight.astype(a.dtype) * (b - a), old, new)


def _decayed(old: Any, gradients: Any, beta: float) -> Any:
    """β · old + (1 − β) · gradient²."""
    return jax.tree.map(lambda a, g: beta * a + (1 - beta) * g * g, old, gradients)


def momentum(momentum: Momentum, dampening: float, nesterov: bool) -> optax.GradientTransformation:
    """SGD: b ← m · b + (1 − dampening) · g, but b ← g at first; a step whose m is 0 leaves b and takes g."""

    def init(params: Any) -> MomentumState:
        return MomentumState(_zero(), jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        with jax.enable_x64(True):
            m = _at(momentum, state.schedule_count)
            off, damped = m == 0, jnp.where(state.begun, 1 - dampening, 1.0)
            begun = state.begun | ~off

        def trace(b: Any, g: Any) -> Any:
            return jnp.where(off, b, m.astype(g.dtype) * b + damped.astype(g.dtype) * g)

        def step(b: Any, g: Any) -> Any:
            return jnp.where(off, g, g + m.astype(g.dtype) * b if nesterov else b)

        traces = jax.tree.map(trace, state.trace, updates)
        count = optax.safe_increment(state.schedule_count)
        return jax.tree.map(step, traces, updates), MomentumState(count, begun, traces)

    return optax.GradientTransformation(init, update)


def adam(beta1: Momentum, beta2: float, eps: float, amsgrad: bool) -> optax.GradientTransformation:
    """Adam; with amsgrad the maximum of the moments as they are, before bias correction."""

    def init(params: Any) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamState(_zero(), _zero(), zeros, zeros, zeros if amsgrad else None)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        with jax.enable_x64(True):
            b1, n = _at(beta1, state.schedule_count), jnp.asarray(count, jnp.float64)
            correction1, root2 = 1 - b1**n, jnp.sqrt(1 - jnp.asarray(beta2, jnp.float64) ** n)
            weight = 1 - b1
        mu, nu = _mix(state.mu, updates, weight), _decayed(state.nu, updates, beta2)
        nu_max = jax.tree.map(jnp.maximum, state.nu_max, nu) if amsgrad else None

        def step(m: Any, v: Any) -> Any:
            return m / correction1.astype(m.dtype) / (jnp.sqrt(v) / root2.astype(m.dtype) + eps)

        steps = jax.tree.map(step, mu, nu_max if amsgrad else nu)
        return steps, AdamState(count, optax.safe_increment(state.schedule_count), mu, nu, nu_max)

    return optax.GradientTransformation(init, update)


def nadam(beta1: Momentum, beta2: float, eps: float, decay: float, dtype: Any) -> optax.GradientTransformation:
    """NAdam: μₙ = β₁ (1 − 0.96^(n · decay) / 2); gradient and first moment are corrected by products of μ."""

    def init(params: Any) -> NAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return NAdamState(_zero(), _zero(), jnp.ones((), dtype), zeros, zeros)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        with jax.enable_x64(True):
            b1, n = _at(beta1, state.schedule_count), jnp.asarray(count, jnp.float64)
            now, following = (b1 * (1.0 - 0.5 * 0.96 ** (k * decay)) for k in (n, n + 1))
            product = state.mu_product * now.astype(state.mu_product.dtype)
            whole = product.astype(jnp.float64)
            first, second = (1.0 - now) / (1.0 - whole), following / (1.0 - whole * following)
            correction2, weight = 1 - jnp.asarray(beta2, jnp.float64) ** n, 1 - b1
        mu, nu = _mix(state.mu, updates, weight), _decayed(state.nu, updates, beta2)

        def step(g: Any, m: Any, v: Any) -> Any:
            denominator = jnp.sqrt(v / correction2.astype(v.dtype)) + eps
            return (first.astype(g.dtype) * g + second.astype(g.dtype) * m) / denominator

        counts = count, optax.safe_increment(state.schedule_count)
        return jax.tree.map(step, updates, mu, nu), NAdamState(*counts, product, mu, nu)

    return optax.GradientTransformation(init, update)


def rmsprop(alpha: float, eps: float, momentum: Momentum | None, centered: bool) -> optax.GradientTransformation:
    """RMSprop: g / (√v + ε), v the mean square, less the squared mean if centered; then momentum."""

    def init(params: Any) -> RMSpropState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return RMSpropState(_zero(), zeros, zeros if centered else None, None if momentum is None else zeros)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        square, mean, trace, spread = _decayed(state.square, updates, alpha), state.mean, state.trace, None
        if centered:
            mean = jax.tree.map(lambda a, g: a + (1 - alpha) * (g - a), mean, updates)
            spread = jax.tree.map(lambda v, a: v - a * a, square, mean)
        steps = jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), updates, square if spread is None else spread)
        if momentum is not None:
            with jax.enable_x64(True):
                m = _at(momentum, state.schedule_count)
                on = m > 0
            trace = jax.tree.map(lambda b, s: jnp.where(on, m.astype(b.dtype) * b + s, b), trace, steps)
            steps = jax.tree.map(lambda b, s: jnp.where(on, b, s), trace, steps)
        return steps, RMSpropState(optax.safe_increment(state.schedule_count), square, mean, trace)

    return optax.GradientTransformation(init, update)


def adagrad(decay: float, initial: float, eps: float) -> optax.GradientTransformation:
    """Adagrad: g / (√sum + ε) / (1 + n · decay), n from 0."""

    def init(params: Any) -> AdagradState:
        return AdagradState(_zero(), jax.tree.map(lambda p: jnp.full_like(p, initial), params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        total = jax.tree.map(lambda a, g: a + g * g, state.total, updates)
        with jax.enable_x64(True):
            slower = 1.0 / (1.0 + jnp.asarray(state.count, jnp.float64) * decay)
        steps = jax.tree.map(lambda g, a: slower.astype(g.dtype) * (g / (jnp.sqrt(a) + eps)), updates, total)
        return steps, AdagradState(optax.safe_increment(state.count), total)

    return optax.GradientTransformation(init, update)
