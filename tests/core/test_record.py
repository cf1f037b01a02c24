"""core/record.py: a listener hears what its own context records, and nobody else does."""

import threading

import jax
import jax.numpy as jnp
import pytest

from jaxattn.core.dot_product import dot_product_attention
from jaxattn.core.record import OPERANDS, listening, record, recording


def test_without_a_listener_nothing_happens():
    assert not recording()
    record("logits", object())


def test_the_listener_hears_names_and_values_in_order():
    heard = []
    with listening(lambda name, value: heard.append((name, value))):
        assert recording()
        record("q", 1)
        record("weights", 2)
    record("v", 3)
    assert heard == [("q", 1), ("weights", 2)]
    assert not recording()


def test_an_exception_ends_the_listening():
    with pytest.raises(KeyError), listening(lambda name, value: None):
        raise KeyError
    assert not recording()


def test_the_inner_listener_hears_alone_and_the_outer_one_hears_again_after_it():
    outer, inner = [], []
    with listening(lambda name, value: outer.append(name)):
        record("before", None)
        with listening(lambda name, value: inner.append(name)):
            record("within", None)
        record("after", None)
    assert (outer, inner) == (["before", "after"], ["within"])


def test_another_thread_is_not_heard():
    heard, states = [], []

    def elsewhere():
        states.append(recording())
        record("logits", None)

    with listening(lambda name, value: heard.append(name)):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert (heard, states) == ([], [False])


def test_operands_are_recorded_before_what_they_make():
    heard = []
    with listening(lambda name, value: heard.append(name)):
        jax.eval_shape(dot_product_attention, *[jnp.ones((3, 2, 5))] * 3)
    for name, operands in OPERANDS.items():
        assert all(heard.index(operand) < heard.index(name) for operand in operands)
