"""Small torch modules, and ways to plant a fault in the twin of one."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

import jaxattn
import torchref
from jaxattn.convert.rules import TRANSPOSE, Rule
from jaxattn.layers import linear

from ..inputs import generator, randomise
from .wrong_twins import become

B, T, S, N, H = 3, 5, 7, 2, 3
D = N * H


def draw(*shape: int) -> np.ndarray:
    return generator(f"trace {shape}").standard_normal(shape).astype(np.float32)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, N, 11, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def self_attention() -> nn.Module:
    return torchref.MultiHeadSelfAttention(D, N)


def torch_attention() -> nn.Module:
    return nn.MultiheadAttention(D, N, batch_first=True)


def grouped() -> nn.Module:
    """Four heads whose keys are those of two, repeated."""
    module = randomise(torchref.MultiHeadSelfAttention(4 * H, 4), "grouped")
    with torch.no_grad():
        heads = module.Wk.weight.reshape(4, H, -1)
        heads[1::2] = heads[::2].clone()
    return module


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Untied(nnx.Module):
    def __init__(self):
        self.first, self.second = (linear(D, D, rngs=nnx.Rngs(0)) for _ in range(2))

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


class FeedForward(nnx.Module):
    """nn.Sequential(nn.Linear, nn.GELU, nn.Linear) with the tanh approximation."""

    def __init__(self):
        self.layers = nnx.List([linear(D, 11, rngs=nnx.Rngs(0)), nnx.gelu, linear(11, D, rngs=nnx.Rngs(0))])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def torch_rules(self):
        rules = []
        for place in (0, 2):
            rules += [
                Rule((f"{place}.weight",), f"layers.{place}.kernel", TRANSPOSE),
                Rule((f"{place}.bias",), f"layers.{place}.bias"),
            ]
        return rules


def untied(module: nn.Module) -> nnx.Module:
    twin = Untied()
    weights = {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
    weights["second.weight"] = weights["second.weight"] + 1
    jaxattn.load_state_dict(twin, weights)
    return twin


def feed_forward(module: nn.Module) -> nnx.Module:
    twin = FeedForward()
    jaxattn.load_state_dict(twin, module.state_dict())
    return twin


def at(path: str, change: Callable[[Any], None]) -> Callable[[nn.Module], nnx.Module]:
    """The twin with `change` applied to its part at `path`."""

    def make(module: nn.Module) -> nnx.Module:
        twin = jaxattn.from_torch(module)
        part: Any = twin
        for name in filter(None, path.split(".")):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        change(part)
        return twin

    return make


def weight(path: str, change: Callable[[jnp.ndarray], Any]) -> Callable[[nn.Module], nnx.Module]:
    """The twin with another value of the parameter at `path`."""
    owner, _, name = path.rpartition(".")

    def write(part: Any) -> None:
        parameter = getattr(part, name)
        parameter[...] = jnp.asarray(change(parameter[...]))

    return at(owner, write)


def kind(path: str, cls: type) -> Callable[[nn.Module], nnx.Module]:
    return at(path, lambda part: become(part, cls))


def setting(path: str, **values: Any) -> Callable[[nn.Module], nnx.Module]:
    def change(part: Any) -> None:
        for name, value in values.items():
            setattr(part, name, value)

    return at(path, change)


def copied(source: str, target: str) -> Callable[[nn.Module], nnx.Module]:
    """The parameter `target` of the second layer takes the first layer's `source`."""

    def change(twin: Any) -> None:
        first, second = twin.layers[0], twin.layers[1]
        getattr(second, target).kernel[...] = getattr(first, source).kernel[...]

    return at("", change)


def swapped(module: nn.Module) -> nnx.Module:
    twin = jaxattn.from_torch(module)
    twin.Wq.kernel[...], twin.Wk.kernel[...] = twin.Wk.kernel[...], twin.Wq.kernel[...]
    return twin


def one_ulp(bias: jnp.ndarray) -> np.ndarray:
    values = np.array(bias)
    values[2] = np.nextafter(values[2], np.float32(9))
    return values


def head_blocks(array: jnp.ndarray, order: Any) -> jnp.ndarray:
    """Rows of q, k and v in another order of features."""
    blocks = array.reshape(3, D, *array.shape[1:])
    return blocks[:, order].reshape(array.shape)


def tiled(kernel: jnp.ndarray) -> jnp.ndarray:
    """Heads 0, 1, 0, 1 where the module has 0, 0, 1, 1."""
    return kernel.reshape(-1, 4, H)[:, jnp.array([0, 2, 1, 3])].reshape(kernel.shape)


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 11), nn.GELU(), nn.Linear(11, D))


def in_bfloat16(module: nn.Module) -> nnx.Module:
    return jaxattn.from_torch(module, dtype=jnp.bfloat16)
