"""Checks cost what there is to check, whatever numbers a file holds, and every odd entry is a problem by name."""

import json
import time

import jax
import numpy as np
import pytest
import torch
from flax import nnx

import jaxattn
from jaxattn.convert.match import Nearest, match_keys
from jaxattn.models.configuration import read_config
from jaxattn.models.pretrained import load_model

from ..models.hugging_face import hugging_face

#: Seconds of this process, annotations executed: the answers take a few, a quadratic check many minutes.
LIMIT = 60.0
MANY = 50_000


@pytest.fixture
def quick():
    start = time.process_time()
    yield
    assert time.process_time() - start < LIMIT


def attention() -> jaxattn.MultiheadAttention:
    return jaxattn.MultiheadAttention(4, 2, rngs=nnx.Rngs(0))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_many_names_that_end_alike(quick):
    given = {f"a{i}.in_proj_weight": zeros(12, 4) for i in range(MANY)}
    with pytest.raises(jaxattn.ConversionError) as failed:
        jaxattn.load_state_dict(attention(), given)
    assert len(failed.value.problems) >= MANY + 4
    assert any("missing `in_proj_weight`" in problem for problem in failed.value.problems)
    assert len(str(failed.value)) < 100_000 and "more, in the error's `problems`" in str(failed.value)


def test_many_places_where_a_whole_module_lies(quick):
    own = jaxattn.state_dict(attention())
    given = {f"a{i}.{name}": value for i in range(MANY // 4) for name, value in own.items()}
    with pytest.raises(jaxattn.ConversionError, match="prefix='a0' or prefix='a1' .* others"):
        jaxattn.load_state_dict(attention(), given)


def test_many_names_behind_many_wrappers(quick):
    wrapped = "module._orig_mod." * 6
    found = match_keys([f"{wrapped}a{i}.w" for i in range(MANY)], ["a7.w", "module.a8.w"])
    assert found.unwrapped == {f"{wrapped}a7.w": "a7.w", f"{wrapped}a8.w": "module.a8.w"}
    assert len(found.unexpected) == MANY - 2


def test_many_renames(quick):
    rename = {f"old{i}": f"new{i}" for i in range(MANY)}
    found = match_keys([f"old{i}.w" for i in range(MANY)], [f"new{i}.w" for i in range(MANY)], rename=rename)
    assert len(found.source_of) == MANY and found.renamed["old7.w"] == "new7.w"


def test_the_first_rename_that_fits_counts():
    given = {"a.b": "x", "a": "y", "a.b.c": "z"}
    found = match_keys(["a.b.c.w", "a.q.w", "ab.w", "a"], [], rename=given)
    assert found.renamed == {"a.b.c.w": "x.c.w", "a.q.w": "y.q.w", "a": "y"}
    found = match_keys(["a.b.c.w"], [], rename=dict(reversed(given.items())))
    assert found.renamed == {"a.b.c.w": "z.w"}


def test_what_was_meant_is_found_among_many():
    names = Nearest([f"layers.{i}.self_attn.in_proj_weight" for i in range(1000)])
    assert names("layers.77.self_attn.in_proj_wieght") == "layers.77.self_attn.in_proj_weight"
    assert names("layer.78.self_attn.in_proj_weight") is not None
    assert names("something else") is None and names("x" * 10_000) is None


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (jax.ShapeDtypeStruct((4,), np.float32), "ShapeDtypeStruct, which holds no values"),
        ([[1.0], [2.0, 3.0]], "is a list, no tensor"),
        (7, "is a int, no tensor"),
        (torch.zeros(4, device="meta"), "meta tensor"),
    ],
)
def test_an_entry_that_is_no_array_is_named(entry, sentence):
    module = attention()
    before = jaxattn.state_dict(module)
    with pytest.raises(jaxattn.ConversionError, match=rf"`out_proj.bias` .*{sentence}"):
        jaxattn.load_state_dict(module, {**before, "out_proj.bias": entry})
    assert all(value.tobytes() == before[name].tobytes() for name, value in jaxattn.state_dict(module).items())


def test_names_are_text():
    """No number in a name is read as one: not 007, none of more digits than Python reads."""

    class Holder(nnx.Module):
        def __init__(self):
            for name in ("007", "9" * 5000):
                setattr(self, name, nnx.Param(jax.numpy.zeros(2)))

    holder = Holder()
    given = {"007": np.ones(2, np.float32), "9" * 5000: np.full(2, 3, np.float32)}
    jaxattn.load_state_dict(holder, given)
    assert {name: value.tolist() for name, value in jaxattn.state_dict(holder).items()} == {
        name: value.tolist() for name, value in given.items()
    }


@pytest.mark.parametrize(
    "option",
    [
        {"num_hidden_layers": 10**9},
        {"max_position_embeddings": 2**31},
        {"vocab_size": 10**30},
        {"initializer_range": 10**400},
        {"layer_norm_eps": -(10**400)},
    ],
)
def test_a_number_in_a_configuration_costs_nothing(quick, option):
    small = hugging_face("many names", num_hidden_layers=1)
    options = {**small.config.to_dict(), **option}
    (name,) = option
    with pytest.raises(ValueError, match=f"`{name}`"):
        load_model(options, small.state_dict())


def test_a_huge_configuration_is_refused_unread(tmp_path, quick):
    path = tmp_path / "config.json"
    path.write_bytes(b"{}," * 30_000_000)
    with pytest.raises(ValueError, match="at most 4000000 bytes, got 90000000"):
        read_config(path)


def test_a_number_of_too_many_digits_is_our_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert", "vocab_size": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_config(path)
    path.write_text(json.dumps({"model_type": "bert"}))
    assert read_config(path) == {"model_type": "bert"}


def test_an_expanded_tensor_is_refused_by_its_shape(quick):
    """10¹⁰ elements that are one: neither filled nor cast."""
    small = hugging_face("many names", num_hidden_layers=1)
    huge = np.broadcast_to(np.float16(1), (100_000, 100_000))
    weights = {**small.state_dict(), "pooler.dense.weight": huge}
    with pytest.raises(jaxattn.ConversionError, match="`pooler.dense.weight` has shape"):
        load_model(small.config.to_dict(), weights, param_dtype=np.float32)
