"""A module whose parameters have the input's dtype keeps it; the round trip keeps every bit in every dtype."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxattn

from ..cases import CASES, torch_arguments
from .run import leaves, made, values

names = pytest.mark.parametrize("name", [case.name for case in CASES])
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@names
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_dtype_is_kept_and_round_trip_is_exact(name, dtype):
    case, _, inputs, arrays = made(name)
    kind = str(dtype).removeprefix("torch.")
    oracle = case.oracle().to(dtype)
    want = {key: tensor.clone() for key, tensor in oracle.state_dict().items()}
    with jax.enable_x64(dtype == torch.float64):
        module = case.flax(oracle)
        got = jaxattn.state_dict(module)
        inputs, arrays = values(inputs, arrays)
        cast = [jnp.asarray(x, kind) if np.issubdtype(x.dtype, np.floating) else jnp.asarray(x) for x in inputs]
        results = jax.eval_shape(lambda module, *inputs: leaves(module(*inputs, **arrays, **case.flags)), module, *cast)
        assert {str(result.dtype) for result in results} == {kind}
    assert set(got) == set(want)
    for key, tensor in want.items():
        bits = tensor.contiguous().view(torch.uint8).numpy() if tensor.ndim else tensor.numpy()
        assert got[key].flags.c_contiguous and got[key].flags.writeable
        assert np.array_equal(got[key].view(np.uint8).reshape(bits.shape), bits)


@names
def test_loading_what_was_read_gives_it_back(name):
    """state_dict(load_state_dict(m, sd)) == sd, with NaN payloads and negative zeros in it."""
    case, module, _, _ = made(name)
    fresh = case.flax()
    sent = {}
    for i, (key, tensor) in enumerate(jaxattn.state_dict(module).items()):
        tensor = tensor + i
        tensor.reshape(-1)[:1] = -0.0
        tensor.reshape(-1).view(np.uint32)[-1] = 0x7FC01234
        sent[key] = tensor
    if not sent:
        return
    jaxattn.load_state_dict(fresh, sent)
    back = jaxattn.state_dict(fresh)
    assert list(back) and set(back) == set(sent)
    assert all(np.array_equal(back[key].view(np.uint32), sent[key].view(np.uint32)) for key in sent)


@names
def test_oracle_takes_the_same_arguments(name):
    """The table's arguments are the oracle's own: no translation hides between the two sides."""
    case, _, inputs, arrays = made(name)
    positional, named = torch_arguments(inputs, arrays)
    with torch.no_grad():
        given: Any = case.oracle()(*positional, **named, **case.flags)
    results = given if isinstance(given, tuple) else getattr(given, "to_tuple", lambda: (given,))()
    assert [result.ndim for result in results if result is not None] == [len(a.split()) for a in case.output_axes]
