"""Twins of layers of transformers, einops, torchvision and timm."""

from typing import Any

import einops.layers.torch
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jaxattn
from jaxattn.layers import ChannelNorm, OrderedRMSNorm, Rearrange

from ..errors import refuses
from ..inputs import generator, randomise
from .parts import check, class_of_transformers

D = 7
ACTIVATIONS = {
    "AccurateGELUActivation": (),
    "ClippedGELUActivation": (-0.1, 1.5),
    "FastGELUActivation": (),
    "GELUActivation": (True,),
    "GELUTanh": (),
    "LaplaceActivation": (),
    "LinearActivation": (),
    "MishActivation": (),
    "NewGELUActivation": (),
    "QuickGELUActivation": (),
    "ReLUSquaredActivation": (),
    "SiLUActivation": (),
    "SqrtSoftplusActivation": (),
}


def test_activations_of_transformers():
    from transformers import activations

    check({name: getattr(activations, name)(*given) for name, given in ACTIVATIONS.items()}, lambda name: (5, D))


def test_conv1d_of_gpt2_is_not_transposed():
    from transformers.pytorch_utils import Conv1D

    square = Conv1D(4, 4)
    with torch.no_grad():
        square.weight.copy_(torch.arange(16.0).reshape(4, 4))
    assert np.array_equal(jaxattn.from_torch(square)(jnp.eye(4)), np.arange(16).reshape(4, 4))
    check(
        {"c_attn": randomise(Conv1D(3 * D, D), "c_attn"), "c_proj": randomise(Conv1D(D, D), "c_proj")}, lambda _: (5, D)
    )


PATTERNS = {
    "patches": ("b c (h p) (w q) -> b (h w) (p q c)", {"p": 2, "q": 3}, (5, 3, 4, 6)),
    "heads": ("b t (n h) -> b n t h", {"n": 2}, (5, 7, 6)),
    "any": ("b ... c -> b c ...", {}, (5, 7, 4, 3)),
}


def test_rearrange_of_einops():
    check(
        {name: einops.layers.torch.Rearrange(pattern, **axes) for name, (pattern, axes, _) in PATTERNS.items()},
        lambda name: PATTERNS[name][2],
    )
    twin = jaxattn.from_torch(einops.layers.torch.Rearrange("b (n h) -> n b h", n=2))
    x = jnp.arange(24.0).reshape(2, 3, 4)
    assert np.array_equal(jax.vmap(twin)(x), x.reshape(2, 3, 2, 2).swapaxes(1, 2))
    with refuses(ValueError, r"of shape \(3, 5\) must fit the pattern 'b \(n h\) -> n b h'"):
        twin(jnp.ones((3, 5)))


def test_without_einops_rearrange_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "einops", None)
    with pytest.raises(ImportError, match="pip install einops"):
        Rearrange("a b -> b a")(jnp.ones((2, 3)))


class Standing(nn.LayerNorm):
    """In the place of a class of a package that isn't installed: its formula, from what the package publishes."""

    channels, fp32 = False, False

    def forward(self, input):
        x = input.permute(0, 2, 3, 1) if self.channels else input
        weight, bias = (p.float() if self.fp32 and p is not None else p for p in (self.weight, self.bias))
        x = F.layer_norm(x.float() if self.fp32 else x, self.normalized_shape, weight, bias, self.eps).to(input.dtype)
        return x.permute(0, 3, 1, 2) if self.channels else x


STANDING = {
    "torchvision.models.convnext.LayerNorm2d": {"channels": True},
    "timm.layers.norm.LayerNorm": {},
    "timm.layers.norm.LayerNormFp32": {"fp32": True},
    "timm.layers.norm.LayerNorm2d": {"channels": True},
    "timm.layers.norm.LayerNorm2dFp32": {"channels": True, "fp32": True},
}


def standing(name: str, *, affine: bool = True) -> Any:
    module, _, kind = name.rpartition(".")
    made = type(kind, (Standing,), {"__module__": module, "__qualname__": kind, **STANDING[name]})
    return randomise(made(6, eps=0.01, elementwise_affine=affine), f"{name} norm")


def test_layer_norms_of_torchvision_and_timm():
    parts = {name.replace(".", "_") + f"_{affine}": (name, affine) for name in STANDING for affine in (True, False)}
    known = {key for key, (name, _) in parts.items() if not STANDING[name].get("fp32")}
    made = {key: standing(name, affine=affine) for key, (name, affine) in parts.items()}
    check({key: made[key] for key in sorted(known)}, lambda _: (5, 6, 3, 6))
    for key in sorted(set(parts) - known):
        x = torch.from_numpy(generator(key).standard_normal((5, 6, 3, 6))).to(torch.bfloat16)
        expected = made[key](x).detach().float().numpy()
        got = jaxattn.from_torch(made[key])(jnp.asarray(x.float().numpy(), jnp.bfloat16))
        assert got.dtype == jnp.bfloat16 and np.mean(np.asarray(got, np.float32) != expected) < 0.02
        assert np.allclose(np.asarray(got, np.float32), expected, rtol=2.0**-7)


def test_layer_norms_of_transformers_that_permute():
    kind = class_of_transformers("convnext", "ConvNextLayerNorm")
    squeeze = class_of_transformers("squeezebert", "SqueezeBertLayerNorm")
    shapes = {"first": (5, 6, 3, 4), "last": (5, 4, 3, 6), "squeeze": (5, 6, 3)}
    parts = {
        "first": kind(6, eps=0.01, data_format="channels_first"),
        "last": kind(6, eps=0.01),
        "squeeze": squeeze(6, eps=0.01),
    }
    check({name: randomise(part, f"{name} norm") for name, part in parts.items()}, lambda name: shapes[name])


def test_channel_norm_has_its_axis_with_and_without_a_batch():
    twin = jaxattn.from_torch(standing("torchvision.models.convnext.LayerNorm2d"))
    x = jnp.asarray(generator("channels").standard_normal((3, 6, 6, 6)), jnp.float32)
    assert isinstance(twin, ChannelNorm) and np.allclose(jax.vmap(twin)(x), twin(x), atol=1e-6)
    with refuses(ValueError, r"must have 6 features on axis -3, got \(3, 5, 6, 6\)"):
        twin(jnp.ones((3, 5, 6, 6)))
    with refuses(ValueError, r"must be \[\*, 7\], got shape \(2, 6\)"):
        OrderedRMSNorm(7)(jnp.ones((2, 6)))
