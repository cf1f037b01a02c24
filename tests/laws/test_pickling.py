"""A pickled or deeply copied module is the same: its parameters bit for bit, and the program that it traces to."""

import copy
import pickle

import jax
import numpy as np
import pytest

import jaxattn

from ..cases import CASES
from .run import call, made, values

WAYS = {"pickle": lambda module: pickle.loads(pickle.dumps(module)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("name", [case.name for case in CASES])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_the_same_module(name, way):
    case, module, inputs, arrays = made(name)
    other = WAYS[way](module)
    assert other is not module and type(other) is type(module)
    ours, theirs = jaxattn.state_dict(module), jaxattn.state_dict(other)
    assert list(ours) == list(theirs) and all(ours[key].tobytes() == theirs[key].tobytes() for key in ours)
    given = values(inputs, arrays)
    programs = [
        str(jax.make_jaxpr(lambda module, *given: call(case, module, *given))(one, *given)) for one in (module, other)
    ]
    assert programs[0] == programs[1]
    if theirs:
        jaxattn.load_state_dict(other, {key: value + np.ones((), value.dtype) for key, value in theirs.items()})
    assert all(ours[key].tobytes() == value.tobytes() for key, value in jaxattn.state_dict(module).items())
