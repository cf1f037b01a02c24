"""Which implementation takes which call, and why not another."""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn
from jaxattn import dot_product_attention, dot_product_attention_stats, explain_dispatch, masks
from jaxattn.core import dispatch
from jaxattn.core.bounds import Bounds, bounds_of
from jaxattn.core.dispatch import DENSE_BYTES, DENSE_ELEMENTS, decide
from jaxattn.core.facts import Facts, compute_capability
from jaxattn.core.mask_base import as_mask

from ..errors import refuses
from ..inputs import S, T
from ..tolerances import close
from .test_kernels import CAUSAL, LENGTHS, PADDING, WINDOW, as_cudnn, draw

CPU = Facts("cpu", 2, 8, 2, 64, 128, 64, 64, ("float32", "float32", "float32"))
GPU = dataclasses.replace(CPU, backend="gpu", dtypes=("bfloat16",) * 3, capability=(9, 0))
TPU = dataclasses.replace(CPU, backend="tpu", length_q=128, has_splash=True)
HALF, FULL = ("float16",) * 3, ("float64",) * 3

#: Facts, changes to them, what "auto" takes, and for some others a part of the reason why not.
TABLE: list[tuple[Facts, dict[str, Any], str, dict[str, str]]] = [
    (CPU, {"batch": 1, "num_heads": 2}, "dense", {"blockwise": "16384 logits are at most", "cudnn": "no GPU"}),
    (CPU, {"batch": 1, "num_heads": 2, "length_q": 65}, "blockwise", {"dense": "16640 logits are more"}),
    (CPU, {"length_q": 1, "length_kv": 2**12}, "decode", {"blockwise": "few queries", "dense": "are more than"}),
    (CPU, {"length_q": 2, "length_kv": 2**12}, "blockwise", {"decode": "T · N / K = 8 and T · N = 16 must be at most"}),
    (CPU, {"num_heads": 65, "kv_heads": 65, "length_q": 1, "length_kv": 2**12}, "blockwise", {"decode": "T · N = 65"}),
    (GPU, {"bias": True, "length_q": 1, "length_kv": 2**27}, "blockwise", {"decode": "made for a CPU"}),
    (CPU, {"length_q": 0}, "dense", {}),
    (CPU, {"length_kv": 0}, "dense", {}),
    (CPU, {"batch": 0}, "dense", {}),
    (GPU, {}, "cudnn", {"dense": "cudnn can compute", "blockwise": "made for the GPU", "splash": "it runs on the GPU"}),
    (GPU, {"dtypes": HALF, "capability": (8, 0), "width": 128, "value_width": 128}, "cudnn", {}),
    (GPU, {"width": 256, "value_width": 256}, "cudnn", {}),
    (GPU, {"width": 256, "value_width": 256, "capability": (8, 9)}, "dense", {"cudnn": "at most 128 here, got 256"}),
    (GPU, {"width": 60, "value_width": 60}, "dense", {"cudnn": "multiple of 8, at most 256 here, got 60"}),
    (GPU, {"value_width": 32}, "dense", {"cudnn": "V = 32, H = 64"}),
    (GPU, {"dtypes": CPU.dtypes}, "dense", {"cudnn": "got float32, float32, float32"}),
    (GPU, {"dtypes": ("bfloat16", "float16", "float16")}, "dense", {"cudnn": "must all be float16 or all"}),
    (GPU, {"capability": None}, "dense", {"cudnn": "CUDA"}),
    (GPU, {"capability": (7, 5)}, "dense", {"cudnn": "8.0"}),
    (GPU, {"right": 0}, "cudnn", {}),
    (GPU, {"left": 5, "right": 0, "padded": True}, "cudnn", {}),
    (GPU, {"right": 2}, "dense", {"cudnn": "end at the diagonal"}),
    (GPU, {"right": -1}, "dense", {"cudnn": "end at the diagonal"}),
    (GPU, {"left": -1, "right": 0}, "dense", {"cudnn": "starts at i + 1"}),
    (GPU, {"left": 5}, "dense", {"cudnn": "got i - 5 to i + None"}),
    (GPU, {"mask": "`segments`"}, "dense", {"cudnn": "got `segments`"}),
    (GPU, {"bias": True}, "dense", {"cudnn": "`bias`"}),
    (GPU, {"score_mod": True}, "dense", {"cudnn": "`score_mod`"}),
    (GPU, {"soft_cap": True}, "dense", {"cudnn": "`soft_cap`"}),
    (GPU, {"dropout": True}, "dense", {"cudnn": "`dropout_rng`"}),
    (GPU, {"precision": True}, "dense", {"cudnn": "`precision`"}),
    (GPU, {"known_scale": False}, "dense", {"cudnn": "`scale`"}),
    (GPU, {"statistics": True}, "dense", {"cudnn": "row maximum"}),
    (GPU, {"length_kv": 0}, "dense", {"cudnn": "no example, query or key"}),
    (GPU, {"bias": True, "length_q": 2**15}, "dense", {}),
    (GPU, {"bias": True, "length_q": 2**15 + 1}, "blockwise", {"dense": f"more than DENSE_BYTES = {DENSE_BYTES}"}),
    (GPU, {"dtypes": FULL, "length_q": 2**15}, "blockwise", {}),
    (TPU, {}, "splash", {"dense": "splash can compute", "cudnn": "it runs on the TPU"}),
    (TPU, {"soft_cap": True, "left": 5, "right": 3, "value_width": 128, "known_scale": False}, "splash", {}),
    (TPU, {"padded": True, "right": 0}, "splash", {}),
    (TPU, {"padded": True, "left": 5}, "dense", {"splash": "nothing to attend"}),
    (TPU, {"right": -1}, "dense", {"splash": "nothing to attend"}),
    (TPU, {"left": -1, "right": 3}, "dense", {"splash": "starts at i + 1"}),
    (TPU, {"left": 5, "length_q": 256}, "dense", {"splash": "nothing to attend"}),
    (TPU, {"length_q": 120}, "dense", {"splash": "multiples of 128, got T = 120, S = 128"}),
    (TPU, {"width": 32}, "dense", {"splash": "multiples of 64, got H = 32, V = 64"}),
    (TPU, {"dtypes": HALF}, "dense", {"splash": "must all be float32 or all"}),
    (TPU, {"has_splash": False}, "dense", {"splash": "no splash kernels"}),
    (TPU, {"mask": "an array"}, "dense", {"splash": "got an array"}),
    (TPU, {"bias": True}, "dense", {"splash": "`bias`"}),
    (TPU, {"score_mod": True}, "dense", {"splash": "`score_mod`"}),
    (TPU, {"dropout": True}, "dense", {"splash": "`dropout_rng`"}),
    (TPU, {"precision": True}, "dense", {"splash": "`precision`"}),
    (TPU, {"statistics": True}, "dense", {"splash": "row maximum"}),
    (TPU, {"bias": True, "length_q": 2**17}, "blockwise", {}),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[f"{facts.backend} {changes}" for facts, changes, _, _ in TABLE])
def test_the_table(row):
    facts, changes, expected, reasons = row
    chosen, refused = decide(dataclasses.replace(facts, **changes))
    assert chosen == expected
    assert {chosen, *refused} == set(dispatch.IMPLEMENTATIONS) and chosen not in refused
    for name, part in reasons.items():
        assert part in refused[name]


def test_the_threshold_of_the_table():
    assert DENSE_ELEMENTS == 2 * 64 * 128, "change the sizes in the first rows of the table too"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, Bounds()),
        (CAUSAL, Bounds(right=0)),
        (masks.causal(-2), Bounds(right=-2)),
        (masks.causal(S - 1), Bounds()),
        (WINDOW(2, 1), Bounds(2, 1)),
        (WINDOW(T - 1, None), Bounds()),
        (WINDOW(2, 0, offset=1), Bounds(1, 1)),
        (WINDOW(2, 0, offset=3) & CAUSAL, Bounds(-1, 0)),
        (WINDOW(2, 1, np.array(1)), "`sliding_window` with an array as offset"),
        (CAUSAL & WINDOW(2, 5), Bounds(2, 0)),
        (WINDOW(3, None) & (WINDOW(2, None) & CAUSAL), Bounds(2, 0)),
        (PADDING & CAUSAL, Bounds(right=0, lengths=(LENGTHS,))),
        (masks.causal(np.array(1)), "`causal` with an array as offset"),
        (masks.prefix(2), "`prefix`"),
        (CAUSAL & masks.segments(np.zeros(T, int), np.zeros(S, int)), "`segments`"),
        (np.ones((T, S), bool), "an array"),
        (masks.from_predicate(lambda b, n, i, j: i > j), "`from_predicate`"),
        (CAUSAL | PADDING, "`|`"),
        (~CAUSAL, "`~`"),
    ],
)
def test_masks_as_bounds(mask, expected):
    assert bounds_of(as_mask(mask), T, S) == expected


def test_weights_beside_a_kernel_that_gives_none(monkeypatch):
    """The output stays bit for bit what it is without them."""
    monkeypatch.setitem(dispatch.IMPLEMENTATIONS, "cudnn", as_cudnn)
    monkeypatch.setitem(dispatch.KERNELS, "cudnn", lambda facts: "no statistics" if facts.statistics else None)
    arrays = draw()
    assert explain_dispatch(*arrays).chosen == "cudnn"
    alone, whole = (dot_product_attention(*arrays, mask=PADDING, return_weights=asked) for asked in (False, True))
    part = dot_product_attention(*arrays, mask=PADDING, weights_for=([1], [0, 2]))
    dense = dot_product_attention(*arrays, mask=PADDING, return_weights=True, implementation="dense")
    assert np.array_equal(alone.output, whole.output) and np.array_equal(alone.output, part.output)
    assert alone.weights is None and close(whole.weights, dense.weights)
    assert close(part.weights, dense.weights[:, [1]][:, :, [0, 2]])
    assert close(dot_product_attention_stats(*arrays, mask=PADDING).output, dense.output)


REFUSED = [
    ("cudnn", dot_product_attention, "`implementation='cudnn'` cannot compute this call: there is no GPU"),
    ("cudnn", dot_product_attention_stats, "use implementation='auto', which takes 'dense' here"),
    ("splash", dot_product_attention, "there is no TPU, it runs on the CPU"),
    ("splash", explain_dispatch, "there is no TPU"),
]


@pytest.mark.parametrize(("name", "call", "message"), REFUSED)
def test_the_impossible_is_refused_and_never_replaced(name, call, message):
    with refuses(NotImplementedError, message):
        call(*draw(), implementation=name)


def test_an_explanation():
    arrays = draw()
    found = explain_dispatch(*arrays, mask=CAUSAL)
    assert (found.chosen, found.backend) == ("dense", "cpu") and set(found.refused) == {
        "blockwise",
        "decode",
        "cudnn",
        "splash",
    }
    lines = str(found).splitlines()
    assert lines[0] == "dense on the CPU" and len(lines) == 5 and all(line.startswith("  not ") for line in lines[1:])
    asked = explain_dispatch(*arrays, implementation="blockwise")
    assert asked.chosen == "blockwise" and "is asked for" in asked.refused["dense"]
    assert isinstance(found, jaxattn.Explanation)


def test_an_explanation_of_shapes_and_under_jit():
    long = jax.ShapeDtypeStruct((8, 512, 4, 64), jnp.bfloat16)
    assert explain_dispatch(long, long, long, mask=CAUSAL, return_weights=True).chosen == "blockwise"
    found = []
    jax.jit(lambda q, k, v: found.append(explain_dispatch(q, k, v).chosen))(*draw())
    assert found == ["dense"]
    with refuses(ValueError, "same head width"):
        explain_dispatch(long, jax.ShapeDtypeStruct((8, 512, 4, 32), jnp.bfloat16), long)


def test_the_choice_does_not_know_of_weights():
    assert not any("weights" in field.name for field in dataclasses.fields(Facts))
    arrays = draw()
    choices = [explain_dispatch(*arrays, return_weights=asked) for asked in (False, True)]
    assert choices[0] == choices[1] == explain_dispatch(*arrays, weights_for=(None, [0]))


def test_explain_takes_the_options_of_the_operation():
    def arguments(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert arguments(explain_dispatch) == arguments(dot_product_attention)


def test_compute_capability():
    class Device:
        compute_capability = "12.1"

    assert compute_capability(Device()) == (12, 1)
    assert compute_capability(jax.devices()[0]) is None
    Device.compute_capability = "gfx90a"
    assert compute_capability(Device()) is None
