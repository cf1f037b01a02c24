"""load_state_dict and state_dict: all or nothing, every problem at once, nothing truncated."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxattn
from jaxattn import ConversionError

from ..errors import refuses

E, N = 22, 2


def module(seed: int = 0, **options) -> jaxattn.MultiHeadSelfAttention:
    return jaxattn.MultiHeadSelfAttention(E, N, rngs=nnx.Rngs(seed), **options)


def snapshot(m) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in jaxattn.state_dict(m).items()}


GOOD = jaxattn.state_dict(module(1))


def without(*names: str) -> dict:
    return {key: value for key, value in GOOD.items() if key not in names}


def test_loads_in_place_and_reports():
    target = module()
    kernel = target.Wq.kernel
    report = jaxattn.load_state_dict(target, GOOD)
    assert report.loaded == 8 and str(report) == "8 tensors loaded" and target.Wq.kernel is kernel
    assert np.array_equal(target.Wq.kernel[...], GOOD["Wq.weight"].T)


def test_takes_torch_tensors():
    target = module()
    jaxattn.load_state_dict(target, {key: torch.from_numpy(value) for key, value in GOOD.items()})
    assert snapshot(target) == {key: value.tobytes() for key, value in GOOD.items()}


def test_does_not_share_memory_with_what_it_loads():
    source = {key: value.copy() for key, value in GOOD.items()}
    target = module()
    jaxattn.load_state_dict(target, source)
    for value in source.values():
        value[...] = 7
    assert snapshot(target) == {key: value.tobytes() for key, value in GOOD.items()}
    jaxattn.state_dict(target)["Wq.bias"][...] = 7
    assert snapshot(target) == {key: value.tobytes() for key, value in GOOD.items()}


BAD = {
    "missing": (without("Wq.bias"), ["missing `Wq.bias`"]),
    "unexpected": ({**GOOD, "Wq.scale": np.ones(3)}, ["unexpected `Wq.scale`"]),
    "near name": (
        {**without("W_o.bias"), "Wo.bias": GOOD["W_o.bias"]},
        ["the checkpoint has `Wo.bias`", "expects `W_o.bias`"],
    ),
    "under a prefix": ({f"net.{k}": v for k, v in GOOD.items()}, ["pass prefix='net'"]),
    "shape": ({**GOOD, "Wq.bias": np.ones(3, np.float32)}, ["`Wq.bias` has shape (3,), expected (22,)"]),
    "packed": (
        {**GOOD, "Wq.weight": np.ones((3 * E, E), np.float32)},
        ["has shape (66, 22), expected (22, 22): it looks packed, q/k/v as (3E, E)"],
    ),
    "half": (
        {**GOOD, "Wq.bias": GOOD["Wq.bias"].astype(np.float16)},
        ["is float16, the module's parameter is float32"],
    ),
    "bfloat16": (
        {**GOOD, "Wq.bias": GOOD["Wq.bias"].astype(ml_dtypes.bfloat16)},
        ["is bfloat16", "param_dtype=jnp.bfloat16"],
    ),
    "float64": (
        {**GOOD, "Wq.bias": GOOD["Wq.bias"].astype(np.float64)},
        ["64-bit types are off in JAX, which would truncate"],
    ),
    "meta": ({**GOOD, "Wq.bias": torch.ones(E, device="meta")}, ["`Wq.bias` is a meta tensor without data"]),
    "sparse": (
        {**GOOD, "Wq.weight": torch.eye(E).to_sparse()},
        ["`Wq.weight` has layout torch.sparse_coo", "to_dense()"],
    ),
    "complex": ({**GOOD, "Wq.bias": torch.ones(E, dtype=torch.complex64)}, ["`Wq.bias` is complex"]),
    "quantised": (
        {**GOOD, "Wq.weight": torch.quantize_per_tensor(torch.eye(E), 0.1, 0, torch.qint8)},
        ["`Wq.weight` is quantised", "dequantize"],
    ),
    "nested": (
        {"model_state_dict": GOOD, "epoch": 3},
        ["nested under 'model_state_dict': pass state_dict['model_state_dict']"],
    ),
    "empty": ({}, ["is empty"]),
    "keys": ({**GOOD, 3: np.ones(3)}, ["Keys of a state dict are strings", "got 3"]),
    "adapter": ({**GOOD, "Wq.lora_A.weight": np.ones((2, 2), np.float32)}, ["is a PEFT (LoRA) adapter"]),
    "quantised names": (
        {**without("Wq.weight"), "Wq.qweight": np.ones(3, np.int32), "Wq.scales": np.ones(3, np.float16)},
        ["is a quantised checkpoint"],
    ),
    "no tensor": ({**GOOD, "Wq.bias": None}, ["`Wq.bias` is a NoneType, no tensor"]),
    "integers": ({**GOOD, "Wq.bias": np.ones(E, np.int32)}, ["`Wq.bias` holds int32"]),
    "list": (list(GOOD.values()), ["is a mapping from names to tensors, got list"]),
    "many at once": (
        {**without("Wq.bias"), "extra": np.ones(1), "Wk.bias": np.ones(4, np.float32)},
        ["missing `Wq.bias`", "unexpected `extra`", "`Wk.bias` has shape (4,)"],
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", BAD)
def test_everything_wrong_is_listed_and_nothing_is_assigned(name):
    state, sentences = BAD[name]
    target = module()
    before = snapshot(target)
    with refuses(ConversionError, ".*".join(map(re.escape, sentences))):
        jaxattn.load_state_dict(target, state)
    assert snapshot(target) == before


def test_a_transposed_weight_is_named():
    target = jaxattn.MultiHeadCrossAttention(E, N, 13, rngs=nnx.Rngs(0))
    state = jaxattn.state_dict(target)
    with pytest.raises(ConversionError, match="the shape matches transposed"):
        jaxattn.load_state_dict(target, {**state, "Wk.weight": state["Wk.weight"].T})


def test_separate_weights_for_a_packed_module_are_named():
    target = jaxattn.MultiheadAttention(E, N, rngs=nnx.Rngs(0))
    separate = {
        f"{name}_proj.{kind}": np.ones((E, E)[: 1 + (kind == "weight")], np.float32)
        for name in "qkvo"
        for kind in ("weight", "bias")
    }
    with pytest.raises(ConversionError, match=r"packed q/k/v \(3E, E\)"):
        jaxattn.load_state_dict(target, separate)


def test_strict_false_loads_what_fits_and_reports_the_rest():
    target = module()
    before = snapshot(target)
    report = jaxattn.load_state_dict(target, {**without("Wq.bias"), "extra": np.ones(1)}, strict=False)
    assert report.missing == ["Wq.bias"] and report.unexpected == ["extra"] and report.loaded == 7
    assert snapshot(target)["Wq.bias"] == before["Wq.bias"] and snapshot(target)["Wk.bias"] == GOOD["Wk.bias"].tobytes()
    assert "missing, left as they were: Wq.bias" in str(report)
    with pytest.raises(ConversionError, match="shape"):
        jaxattn.load_state_dict(target, {**GOOD, "Wq.bias": np.ones(3, np.float32)}, strict=False)


def test_big_endian_arrays_are_swapped():
    target = module()
    jaxattn.load_state_dict(target, {key: value.astype(">f4") for key, value in GOOD.items()})
    assert snapshot(target) == {key: value.tobytes() for key, value in GOOD.items()}


@pytest.mark.parametrize("wrong", [{}, 3, None])
def test_only_modules_hold_weights(wrong):
    for call in (lambda: jaxattn.load_state_dict(wrong, GOOD), lambda: jaxattn.state_dict(wrong)):
        with refuses(TypeError, "must be a flax nnx.Module"):
            call()


def test_abstract_modules_are_filled():
    abstract = nnx.eval_shape(lambda: module())
    jaxattn.load_state_dict(abstract, GOOD)
    assert isinstance(abstract.Wq.kernel[...], jax.Array) and snapshot(abstract) == snapshot(module(1))


def test_float64_loads_when_64_bit_types_are_on():
    with jax.enable_x64(True):
        target = module(param_dtype=jnp.float64)
        jaxattn.load_state_dict(target, {key: value.astype(np.float64) for key, value in GOOD.items()})
        assert all(value.dtype == np.float64 for value in jaxattn.state_dict(target).values())


def test_gradients_come_out_under_torch_names():
    target = module(1)
    x = np.ones((3, E), np.float32)

    def loss(m):
        return (m(x).output ** 2).sum()

    as_module, as_state = jaxattn.state_dict(jax.grad(loss)(target)), nnx.grad(loss)(target)
    from_state = jaxattn.state_dict(as_state, like=target)
    assert set(as_module) == set(GOOD) and as_module["Wq.weight"].shape == (E, E)
    assert all(np.allclose(as_module[key], from_state[key]) for key in GOOD)
    with pytest.raises(TypeError, match="like=module"):
        jaxattn.state_dict(as_state)


def test_a_module_made_of_flax_layers_has_rules_too():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(7, E, rngs=rngs)
            self.norm = nnx.LayerNorm(E, rngs=rngs)
            self.heads = nnx.List([nnx.Linear(E, 5, rngs=rngs), nnx.Linear(E, 3, use_bias=False, rngs=rngs)])

    shapes = {key: value.shape for key, value in jaxattn.state_dict(Block(nnx.Rngs(0))).items()}
    expected = torch.nn.ModuleDict({"embed": torch.nn.Embedding(7, E), "norm": torch.nn.LayerNorm(E)})
    expected["heads"] = torch.nn.ModuleList([torch.nn.Linear(E, 5), torch.nn.Linear(E, 3, bias=False)])
    assert shapes == {key: tuple(value.shape) for key, value in expected.state_dict().items()}


VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.floats(), max_size=3),
    st.sampled_from([np.float32, np.float64, np.int32, bool, object, np.complex64, "U3"]).map(lambda d: np.zeros(E, d)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda s: np.zeros(s, np.float32)),
    st.just({"nested": 1}),
    st.just(torch.ones(2, 2).to_sparse()),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.one_of(st.sampled_from(sorted(GOOD)), st.text(max_size=8), st.integers()), VALUES, max_size=3),
    st.sets(st.sampled_from(sorted(GOOD)), max_size=2),
)
def test_mutated_state_dicts_load_or_raise_our_error(changes, dropped):
    state = {**without(*dropped), **changes}
    target = TARGET
    before = snapshot(target)
    try:
        jaxattn.load_state_dict(target, state)
    except ConversionError:
        assert snapshot(target) == before
    else:
        assert snapshot(target) == {key: np.asarray(value).tobytes() for key, value in state.items()}


TARGET = module()
