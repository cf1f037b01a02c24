"""What users hold can be pickled and deeply copied: every class that the package exports or its functions return."""

import copy
import inspect
import os
import pickle
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

import jaxattn
from jaxattn import conformance, convert, layers, masks, models, parity
from jaxattn.compile import Compiled
from jaxattn.convert.checkpoint import Checkpoint

from .cases import CASES
from .laws.run import made

PACKAGES: tuple[ModuleType, ...] = (jaxattn, convert, models, parity, conformance, layers, masks)
X = np.linspace(-1.0, 1.0, 3, dtype=np.float32).reshape(1, 3)
#: Nothing that a user holds.
WITHOUT = {
    "Mask": "what every mask is made of; the constructors in jaxattn.masks are tested each",
    "Target": "a protocol",
    "Check": "holds a function of the package's own table, which is closed over",
    "NotOffered": "an exception without content of its own",
}


def allowed(b, n, i, j):
    return j <= i


def encoder_layer() -> nnx.Module:
    """With JAX's own function as activation."""
    return jaxattn.TransformerEncoderLayer(6, 2, 7, batch_first=True, activation=jax.nn.relu, rngs=nnx.Rngs(0))


@cache
def ported() -> tuple[torch.nn.Module, Any]:
    torch_module = torch.nn.Linear(3, 2)
    return torch_module, jaxattn.from_torch(torch_module)


def checkpoint(folder: Path) -> Checkpoint:
    jaxattn.save_checkpoint({"w": np.arange(6.0).reshape(2, 3)}, folder / "m.safetensors")
    return jaxattn.read_checkpoint(folder / "m.safetensors")


def loaded() -> Any:
    module = ported()[1]
    return jaxattn.load_state_dict(module, jaxattn.state_dict(module))


def trained() -> Any:
    return parity.train(
        *ported(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [(X, X[:, :2])],
        1,
        loss=lambda output, target: ((output - target) ** 2).mean(),
    )


QKV = (np.ones((1, 2, 1, 3), np.float32),) * 3
#: An example of each class; modules of the table of cases are tested by tests/laws/test_pickling.py.
EXAMPLES: dict[str, Callable[[Path], Any]] = {
    "Activation": lambda _: layers.Activation("relu"),
    "Answer": lambda _: conformance.Answer(np.ones(2), None),
    "Attend": lambda _: layers.Attend(1),
    "AttentionFn": lambda _: jaxattn.as_attention_fn(soft_cap=2.0),
    "AttentionOutput": lambda _: jaxattn.dot_product_attention(*QKV),
    "AttentionStats": lambda _: jaxattn.dot_product_attention_stats(*QKV),
    "BatchNorm": lambda _: layers.BatchNorm(3),
    "BertConfig": lambda _: models.BertConfig(hidden_size=6, num_attention_heads=2),
    "BertOutput": lambda _: models.BertOutput(jax.numpy.ones(2), None),
    "ChannelNorm": lambda _: layers.ChannelNorm(3),
    "Checkpoint": checkpoint,
    "Compiled": lambda _: jaxattn.compile(encoder_layer(), pad_to=(4, 8)),
    "Conv": lambda _: layers.Conv(4, 2, (3,), rngs=nnx.Rngs(0)),
    "ConversionError": lambda _: jaxattn.ConversionError("It failed:", ["here", "and there"]),
    "Dropout": lambda _: layers.Dropout(0.25),
    "DropoutPlan": lambda _: parity.DropoutPlan(3),
    "Dropping": lambda _: layers.Dropping(),
    "Embedding": lambda _: layers.Embedding(5, 3, rngs=nnx.Rngs(0)),
    "Explanation": lambda _: jaxattn.explain_dispatch(*QKV),
    "Flatten": lambda _: layers.Flatten(),
    "FrozenParam": lambda _: layers.FrozenParam(np.ones(2)),
    "GroupNorm": lambda _: layers.GroupNorm(2, 4),
    "InOutLinear": lambda _: layers.InOutLinear(3, 2, rngs=nnx.Rngs(0)),
    "LayerNorm": lambda _: layers.LayerNorm(3, rngs=nnx.Rngs(0)),
    "Linear": lambda _: layers.linear(3, 2, rngs=nnx.Rngs(0)),
    "LoadReport": lambda _: loaded(),
    "OrderedRMSNorm": lambda _: layers.OrderedRMSNorm(3),
    "PReLU": lambda _: layers.PReLU(2),
    "ParityReport": lambda _: parity.compare(*ported(), X),
    "PortReport": lambda _: convert.port_report(ported()[1]),
    "RMSNorm": lambda _: layers.RMSNorm(3),
    "RReLU": lambda _: layers.RReLU(),
    "Rearrange": lambda _: layers.Rearrange("a b -> b a"),
    "Request": lambda _: conformance.Request(*QKV, causal=True),
    "Result": lambda _: conformance.Result("jax.nn", "a", "b?", "c", "pass", "d"),
    "Sequential": lambda _: layers.Sequential([layers.Dropout(0.5)]),
    "Span": lambda _: masks.Span(1, 2),
    "TraceReport": lambda _: parity.trace(*ported(), X),
    "TrainReport": lambda _: trained(),
    "Twins": lambda _: convert.twins(torch.nn.ReLU()),
}
MASKS = {
    "causal": lambda: masks.causal(1),
    "causal_array": lambda: masks.causal(np.array([1, 2])),
    "sliding_window": lambda: masks.sliding_window(2, 0),
    "padding": lambda: masks.padding(np.array([1, 2])),
    "segments": lambda: masks.segments(np.array([[0, 0, 1]])),
    "prefix": lambda: masks.prefix(2),
    "from_array": lambda: masks.from_array(np.tri(3, dtype=bool)),
    "from_predicate": lambda: masks.from_predicate(allowed),
    "combined": lambda: ~(masks.causal() & masks.prefix(1)) | masks.padding(np.array([1])),
}
WAYS = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}


def exported() -> set[str]:
    """Classes of the public packages, and those that their functions say they return."""
    found = set()
    for package in PACKAGES:
        public = [value for name, value in vars(package).items() if not name.startswith("_")]
        returned = [typing.get_type_hints(value).get("return") for value in public if inspect.isfunction(value)]
        for value in [*public, *returned, *(part for hint in returned for part in typing.get_args(hint))]:
            if inspect.isclass(value) and value.__module__.startswith("jaxattn"):
                found.add(value.__name__)
    return found


def content(value: Any) -> Any:
    """What an object holds, in plain values that compare by what they are."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, nnx.Module):
        return repr(nnx.graphdef(value)), {k: content(v) for k, v in jaxattn.state_dict(value).items()}
    if isinstance(value, Checkpoint):
        return {name: content(value[name]) for name in value}
    if isinstance(value, Compiled):
        return repr(value), content(value(jax.numpy.ones((1, 3, 6))))
    if isinstance(value, dict):
        return {key: content(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [content(held) for held in value]
    if hasattr(value, "__dict__") and not inspect.isroutine(value):
        return type(value).__name__, content(value.__getstate__())
    return repr(value)


def test_no_public_class_is_missed():
    of_cases = {type(made(case.name)[1]).__name__ for case in CASES}
    assert exported() == set(EXAMPLES) | set(WITHOUT) | of_cases


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_holds_the_same(name, way, tmp_path):
    value = EXAMPLES[name](tmp_path)
    assert type(value).__name__ == name
    again = WAYS[way](value)
    assert type(again) is type(value) and content(again) == content(value)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_copied_mask_is_the_same(name, way):
    mask = MASKS[name]()
    again = WAYS[way](mask)
    assert type(again) is type(mask)
    assert np.array_equal(mask.to_array(3, 3, batch=(2,)), again.to_array(3, 3, batch=(2,)))


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.numpy.tanh])
def test_functions_of_jax_are_stored_by_name(activation):
    layer = jaxattn.TransformerEncoderLayer(6, 2, 7, activation=activation, rngs=nnx.Rngs(0))
    points = jax.numpy.linspace(-2.0, 2.0, 7)
    assert np.array_equal(pickle.loads(pickle.dumps(layer)).activation(points), activation(points))


def test_a_pickled_report_holds_no_module():
    """Classes of a user's script can't be pickled, and weights are nothing that a report is about."""

    class Local(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    class FlaxLocal(nnx.Linear):
        pass

    module, twin = Local(3, 2), FlaxLocal(3, 2, rngs=nnx.Rngs(0))
    jaxattn.load_state_dict(twin, module.state_dict())
    report = parity.compare(module, twin, X)
    again = pickle.loads(pickle.dumps(report))
    assert again.rows == report.rows and again.ok and str(again) == str(report)


def test_a_pickled_checkpoint_refuses_files_that_changed(tmp_path):
    pickled = pickle.dumps(checkpoint(tmp_path))
    file = tmp_path / "m.safetensors"
    jaxattn.save_checkpoint({"w": -np.arange(6.0).reshape(2, 3)}, file, force=True)
    os.utime(file, (1, 1))
    with pytest.raises(jaxattn.ConversionError, match="the files that were pickled"):
        pickle.loads(pickled)
