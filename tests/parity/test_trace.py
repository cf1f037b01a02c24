"""Healthy pairs are traced without a finding; what a trace shows, and what it refuses."""

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
import torchref
from jaxattn.layers import linear
from jaxattn.parity import trace

from ..errors import refuses

B, T, S, N, H = 3, 5, 7, 2, 3
D = N * H
BLOCKED = np.array([[0, 1, 0, 0, 1, 0, 0], [1, 1, 1, 0, 0, 0, 1]] * 2 + [[0] * 7], bool)
#: Each leaves somebody nothing to attend.
PADDING = np.arange(S) >= np.array([0, 7, 4])[:, None]
PER_HEAD = np.stack([np.roll(BLOCKED, shift, axis=1) for shift in range(B * N)])
PER_HEAD[2, 1] = True
CAUSAL = np.triu(np.ones((T, T), bool), 1)
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_first": True}, {"attn_mask": PER_HEAD, "average_attn_weights": False}),
    ({"kdim": 4, "vdim": 9, "bias": False}, {"key_padding_mask": PADDING, "need_weights": False}),
    ({"add_bias_kv": True, "add_zero_attn": True}, {"attn_mask": np.where(BLOCKED, -math.inf, 0.5)}),
    ({"batch_first": True, "add_bias_kv": True}, {"key_padding_mask": PADDING, "attn_mask": BLOCKED}),
]


def healthy(module: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    report = trace(module, jaxattn.from_torch(module), *inputs, **kwargs)
    report.assert_ok()
    assert (report.first, report.cause, report.evidence, report.unpaired, report.notes) == (None, None, (), (), ())
    assert all(layer.ok and layer.local_error is not None for layer in report.layers)
    return report


@pytest.mark.parametrize(("options", "masks"), OPTIONS)
def test_multihead_attention_inside(options, masks, randomised, draw) -> None:
    module = randomised(nn.MultiheadAttention(D, N, **options))
    shapes = [(B, T, D), (B, S, options.get("kdim", D)), (B, S, options.get("vdim", D))]
    inputs = [draw(*shape) if options.get("batch_first") else draw(shape[1], B, shape[2]) for shape in shapes]
    report = healthy(module, *inputs, **masks)
    assert [layer.torch_path for layer in report.layers] == ["out_proj", ""]
    (shown,) = report.maps
    assert shown.torch.shape == (B, N, T, S + sum(map(bool, (module.bias_k is not None, module.add_zero_attn))))
    np.testing.assert_allclose(shown.flax, shown.torch, rtol=0, atol=1e-14)


def test_an_unbatched_causal_call(randomised, draw) -> None:
    x = draw(T, D)
    module = randomised(nn.MultiheadAttention(D, N))
    healthy(module, x, x, x, attn_mask=CAUSAL, is_causal=True, need_weights=False)


def test_stacks_of_layers(randomised, draw) -> None:
    layer = nn.TransformerEncoderLayer(D, N, 11, norm_first=True)
    module = randomised(nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False))
    report = healthy(module, draw(T, B, D), src_key_padding_mask=np.arange(T) >= np.array([2, 5, 4])[:, None])
    paths = [layer.torch_path for layer in report.layers]
    assert paths.index("layers.0.self_attn") < paths.index("layers.0") < paths.index("layers.1.norm1")
    assert paths[-2:] == ["norm", ""]
    assert [shown.path for shown in report.maps] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_decoder(randomised, draw) -> None:
    module = randomised(nn.TransformerDecoder(nn.TransformerDecoderLayer(D, N, 11, batch_first=True), 1))
    healthy(module, draw(B, T, D), draw(B, S, D), tgt_mask=CAUSAL)


def test_attention_modules(randomised, draw) -> None:
    x, keep = draw(B, T, D), np.ones((T, T), int)
    keep[2] = 0
    healthy(randomised(torchref.ScaledDotProductSelfAttention(D)), x, keep)
    healthy(randomised(torchref.MultiHeadSelfAttention(D, N)), x, mask=keep)
    healthy(randomised(torchref.MultiHeadCrossAttention(D, N, 13)), x, draw(B, S, 13))
    healthy(randomised(torchref.MyAttn(D, 13, S, 9, 4)), draw(B, 1, D), draw(B, 1, 13), draw(B, S, 9))
    healthy(randomised(torchref.MultiHeadSelfAttention(D, N), torch.bfloat16), x)


def test_a_repeated_module_is_one_event_per_call(randomised, draw) -> None:
    shared = nn.Linear(D, D)
    module = randomised(nn.Sequential(shared, nn.GELU(), shared, nn.LayerNorm(D)))
    report = healthy(module, draw(B, D))
    assert [(layer.torch_path, layer.call) for layer in report.layers] == [
        ("0", 0),
        ("1", 0),
        ("0", 1),
        ("3", 0),
        ("", 0),
    ]


class Block(nn.Module):
    """A forward of its own, which nothing translates."""

    def __init__(self):
        super().__init__()
        self.attend, self.out = torchref.MultiHeadSelfAttention(D, N), nn.Linear(D, 4)

    def forward(self, x):
        return self.out(x + self.attend(x)[0])


class FlaxBlock(nnx.Module):
    def __init__(self, module: nn.Module):
        self.look = jaxattn.from_torch(module.attend)
        self.out = jaxattn.from_torch(module.out)
        self.extra = linear(2, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.out(x + self.look(x).output)


def test_pairs_and_unpaired_parts(randomised, draw) -> None:
    module = randomised(Block())
    twin, x = FlaxBlock(module), draw(B, T, D)
    report = trace(module, twin, x, pairs={"attend": "look"})
    assert [layer.flax_path for layer in report.layers] == [
        *(f"look.{n}" for n in ("Wq", "Wk", "Wv", "W_o")),
        "look",
        "out",
        "",
    ]
    assert report.unpaired == ("flax: extra",)
    assert "torch: attend" in trace(module, twin, x).unpaired
    with pytest.raises(ValueError, match="torch paths that don't exist.*'attention'"):
        trace(module, twin, x, pairs={"attention": "look"})
    twin.look.W_o.kernel[...] = twin.look.W_o.kernel[...].T
    found = trace(module, twin, x, pairs={"attend": "look"})
    assert found.first == "attend.W_o"


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"sum": Sum()})

    def forward(self, x):
        return self.inner["sum"](x, by=x)


class Sum(nn.Module):
    def forward(self, x, by):
        return x + by


class FlaxSum(nnx.Module):
    def __call__(self, pair):
        return pair[0] + pair[1]


class FlaxAdding(nnx.Module):
    def __init__(self):
        self.sum = FlaxSum()

    def __call__(self, x):
        return self.sum((x, x))


def test_a_part_that_is_called_otherwise_in_flax_is_no_fault(draw) -> None:
    report = trace(Adding(), FlaxAdding(), draw(B, D), pairs={"inner.sum": "sum"})
    assert report.ok and report.layers[0].torch_path == "inner.sum"
    assert report.layers[0].local_error is None and report.layers[0].error == 0


class Gate(nn.Module):
    """Projections named as those of attention, and no attention."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x, mask=None):
        return self.q_proj(x) + self.v_proj(x) * self.k_proj(x)[..., :D]


class FlaxGate(nnx.Module):
    def __init__(self, module: Gate):
        self.q_proj, self.k_proj, self.v_proj = map(jaxattn.from_torch, (module.q_proj, module.k_proj, module.v_proj))

    def __call__(self, x, mask=None):
        return self.q_proj(x) + self.v_proj(x) * self.k_proj(x)[..., :D]


def test_a_module_that_only_looks_like_attention(randomised, draw) -> None:
    module = randomised(Gate())
    report = trace(module, FlaxGate(module), draw(B, T, D))
    assert report.ok and not report.maps
    assert all("recomputed" not in note for note in report.notes)


def test_wrappers_come_off(randomised, draw) -> None:
    module = nn.DataParallel(randomised(nn.LayerNorm(D)))
    assert [layer.torch_path for layer in healthy(module, draw(B, D)).layers] == [""]


def test_a_truth_that_is_float32(randomised, draw) -> None:
    """nn.RMSNorm(eps=None) takes the epsilon of its dtype."""
    module = randomised(nn.RMSNorm(D))
    report = trace(module, jaxattn.from_torch(module), draw(B, D))
    assert report.ok
    assert any("truth limited to float32 by `nn.RMSNorm(eps=None)" in note for note in report.notes)


def test_the_report(randomised, draw) -> None:
    module = randomised(nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)))
    twin = jaxattn.from_torch(module)
    kernel = next(iter(twin.layers)).kernel
    kernel[...] = kernel[...].T
    report = trace(module, twin, draw(B, D))
    assert report.layers[0].problems[0].startswith("local: ") and not report.layers[1].problems[0].startswith("local")
    assert "they part first at `0`; transposed weight: `0.weight` is equal transposed" in str(report)
    assert [item.kind for item in report.evidence] == ["weights", "local", "output"]
    written = json.loads(json.dumps(report.to_json()))
    assert written["first"] == "0" and not written["ok"] and len(written["layers"]) == 4
    with pytest.raises(AssertionError, match="part first at `0`; transposed weight"):
        report.assert_ok()


def test_neither_module_changes(randomised, draw) -> None:
    module = randomised(nn.LayerNorm(D))
    twin = jaxattn.from_torch(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}, jaxattn.state_dict(twin)
    healthy(module, draw(B, D))
    assert not module._forward_hooks and not module._forward_pre_hooks
    assert all(torch.equal(tensor, before[0][name]) for name, tensor in module.state_dict().items())
    assert all(np.array_equal(array, before[1][name]) for name, array in jaxattn.state_dict(twin).items())
    assert jnp.zeros(1, float).dtype == jnp.float32


class Counted(nnx.Linear):
    count: nnx.Variable

    def __call__(self, inputs, out_sharding=None):
        self.count[...] += 1
        return super().__call__(inputs)


def test_a_flax_module_that_changes_itself_is_left_as_it_was(randomised, draw) -> None:
    module = randomised(nn.Linear(D, D))
    twin = jaxattn.from_torch(module)
    twin.__class__, twin.count = Counted, nnx.Variable(jnp.zeros(()))
    assert trace(module, twin, draw(B, D)).ok
    assert twin.count[...] == 0


def test_nan_inputs_are_said_to_be_nan(randomised, draw) -> None:
    module, x = randomised(nn.Linear(D, 4)), draw(B, D)
    x[1, 2] = np.nan
    report = trace(module, jaxattn.from_torch(module), x)
    assert report.ok
    assert report.evidence[0].kind == "nan" and "`input` holds NaN at 1 of 18 places" in report.evidence[0].sentence


class Counting(nn.Linear):
    """Another result at every call, without torch's randomness."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Wide(nnx.Linear):
    def __call__(self, inputs, out_sharding=None):
        return jnp.concatenate([super().__call__(inputs)] * 2, axis=-1)


def test_bad_input(randomised, draw) -> None:
    module, x = randomised(nn.Linear(D, 4)), draw(B, D)
    twin = jaxattn.from_torch(module)
    with refuses(TypeError, "takes a torch.nn.Module and then a flax nnx.Module"):
        trace(twin, module, x)
    counting = Counting(D, 4)
    counting.load_state_dict(module.state_dict())
    with pytest.raises(ValueError, match="deterministic|twice|again"):
        trace(counting, twin, x)
    with pytest.raises(ValueError, match="training mode with dropout"):
        trace(nn.Sequential(module, nn.Dropout(0.5)).train(), twin, x)
    with pytest.raises(ValueError, match="return the same arrays"):
        trace(
            randomised(torchref.MultiHeadSelfAttention(D, N)), jaxattn.from_torch(randomised(nn.LayerNorm(D))), x[None]
        )


def test_other_shapes_are_a_finding(randomised, draw) -> None:
    module, x = randomised(nn.Linear(D, 4)), draw(B, D)
    twin = jaxattn.from_torch(module)
    twin.__class__ = Wide
    report = trace(module, twin, x)
    assert report.first == "" and str(report.cause) == "shape: shape (3, 8) in Flax, (3, 4) in torch"
