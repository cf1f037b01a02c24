"""The safe softmax: values by arithmetic, gradients finite, no influence of what is masked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.softmax import masked_softmax

from ..tolerances import FLOAT64, close


def test_by_hand():
    assert close(masked_softmax(jnp.log(jnp.array([1.0, 2.0, 5.0]))), [1 / 8, 2 / 8, 5 / 8])
    masked = masked_softmax(jnp.log(jnp.array([1.0, 2.0, 5.0])), jnp.array([True, True, False]))
    assert close(masked, [1 / 3, 2 / 3, 0.0]) and masked[2] == 0


def test_large_and_small_logits():
    assert close(masked_softmax(jnp.array([1e30, -1e30, 1e30])), [0.5, 0.0, 0.5])
    assert close(masked_softmax(jnp.array([-1e9, -1e9])), [0.5, 0.5])


def test_gradient_against_the_formula():
    """∂wᵢ/∂xⱼ = wᵢ (δᵢⱼ − wⱼ) over what is attended, 0 elsewhere."""
    with jax.enable_x64(True):
        logits, mask = jnp.array([0.3, -1.0, 2.0, 0.7]), jnp.array([True, True, False, True])
        jacobian = jax.jacobian(lambda x: masked_softmax(x, mask))(logits)
        weights = np.exp(np.asarray(logits)) * np.asarray(mask)
        weights /= weights.sum()
        assert np.abs(np.asarray(jacobian) - (np.diag(weights) - np.outer(weights, weights))).max() <= FLOAT64


def test_renormalised_entropy_has_a_finite_gradient():
    """The unselected branch of a `where` is differentiated too."""

    def entropy(logits):
        weights = masked_softmax(logits, jnp.array([True, True, False]))
        return -jnp.sum(jnp.where(weights > 0, weights * jnp.log(jnp.where(weights > 0, weights, 1.0)), 0.0))

    assert np.isfinite(np.asarray(jax.grad(entropy)(jnp.array([0.5, 1.0, 7.0])))).all()


@pytest.mark.parametrize("policy", ["zero", "uniform"])
def test_second_derivatives_of_empty_rows_are_finite(policy):
    def loss(logits):
        return (masked_softmax(logits, jnp.zeros(3, bool), empty_row=policy) ** 2).sum()

    assert not np.asarray(jax.hessian(loss)(jnp.array([1.0, 2.0, 3.0]))).any()
