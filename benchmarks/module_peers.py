"""Multi-head self-attention of other libraries with the weights of one torch.nn.MultiheadAttention, output only."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxattn
from jaxattn.conditions import BusyElsewhere, cores, factor
from jaxattn.interleaved import COMPILED, TORCH_EAGER, interleave
from jaxattn.parity.criterion import output_scale
from jaxattn.timing import ParityFailure

from .conditions import announce, print_timing
from .gate import BOUND
from .op import timed
from .systems import reason

Weights = Mapping[str, np.ndarray]
Call = Callable[[Any], Any]


def measure_peers(sizes: Mapping[str, int], how: Mapping[str, Any]) -> dict[str, Any]:
    """Times of all libraries that are installed and agree with torch's float64 run.

    Args:
        sizes: batch, length, embed_dim, num_heads.
        how: rounds, min_block_s, sleep_s.

    Raises:
        ParityFailure: ours does not agree.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(cores())
    original = torch.nn.MultiheadAttention(sizes["embed_dim"], sizes["num_heads"], batch_first=True).eval()
    torch.nn.init.normal_(original.in_proj_bias, std=0.1)
    x = np.random.default_rng(0).standard_normal((sizes["batch"], sizes["length"], sizes["embed_dim"]), np.float32)
    tensor = torch.from_numpy(x)

    @torch.inference_mode()
    def torch_call() -> Any:
        return original(tensor, tensor, tensor, need_weights=False)[0]

    calls: dict[str, Callable[[], Any]] = {}
    left_out = {}
    exact = _exact(original, tensor)
    weights, inputs = split_weights(original, sizes["num_heads"]), jnp.asarray(x)
    for name, make in {COMPILED: lambda weights: _ours(original), **PEERS}.items():
        try:
            call = make(weights)
            difference = float(np.max(np.abs(np.asarray(call(inputs)) - exact))) / output_scale(exact)
            if not difference <= BOUND:
                raise ParityFailure(name, f"{name}: output differs by {difference:.1e}, allowed {BOUND:.0e}")
            calls[name] = lambda call=call: call(inputs)
        except Exception as error:  # a peer that is absent or differs is left out
            if name == COMPILED:
                raise
            left_out[name] = reason(error)
            announce(f"{name} is left out: {left_out[name]}")
    elsewhere = BusyElsewhere()
    timings = interleave({**calls, TORCH_EAGER: torch_call}, **how)
    stated = {"rounds": timings[COMPILED].n, "cores_busy_elsewhere": elsewhere.cores()}
    return {"left_out": left_out, **timed(timings, COMPILED), "conditions": stated}


def print_peers(result: Mapping[str, Any]) -> None:
    print("Multi-head self-attention with the same weights, output only: results agree")
    for name, timing in result["timings"].items():
        over = result["ratio_over"].get(name)
        print_timing(name, timing, f"  ours is {factor(over['median'])} as fast" if over else "")


def split_weights(original: Any, num_heads: int) -> dict[str, np.ndarray]:
    """q, k, v: kernel [D, N, H], bias [N, H]; o: kernel [N, H, D], bias [D]; of a torch.nn.MultiheadAttention."""
    packed, bias = (original.in_proj_weight.detach().numpy(), original.in_proj_bias.detach().numpy())
    features = packed.shape[1]
    split = {"o_kernel": original.out_proj.weight.detach().numpy().T.reshape(num_heads, -1, features)}
    split["o_bias"] = original.out_proj.bias.detach().numpy()
    for name, rows, offsets in zip("qkv", np.split(packed, 3), np.split(bias, 3), strict=True):
        split[f"{name}_kernel"] = rows.T.reshape(features, num_heads, -1)
        split[f"{name}_bias"] = offsets.reshape(num_heads, -1)
    return split


def _exact(original: Any, tensor: Any) -> np.ndarray:
    import copy

    import torch

    with torch.no_grad():
        double = tensor.double()
        return copy.deepcopy(original).double()(double, double, double, need_weights=False)[0].numpy()


def _ours(original: Any) -> Call:
    compiled = jaxattn.compile(jaxattn.from_torch(original), select=lambda result: result.output)
    return lambda x: compiled(x, x, x, need_weights=False)


def _flax(weights: Weights) -> Call:
    features, num_heads, _ = weights["q_kernel"].shape
    module = nnx.MultiHeadAttention(num_heads, features, decode=False, deterministic=True, rngs=nnx.Rngs(0))
    for name, layer in {"q": module.query, "k": module.key, "v": module.value, "o": module.out}.items():
        layer.kernel[...] = jnp.asarray(weights[f"{name}_kernel"])
        layer.bias[...] = jnp.asarray(weights[f"{name}_bias"])  # pyright: ignore[reportOptionalSubscript] -- it has one
    jitted = jax.jit(lambda module, x: module(x))
    return lambda x: jitted(module, x)


def _equinox(weights: Weights) -> Call:
    import equinox  # pyright: ignore[reportMissingImports] -- an optional peer

    features, num_heads, _ = weights["q_kernel"].shape
    biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
    module = equinox.nn.MultiheadAttention(num_heads, features, **biases, key=jax.random.key(0))
    layers = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "output_proj"}
    for name, layer in layers.items():
        kernel = jnp.asarray(weights[f"{name}_kernel"].reshape(features, -1).T)
        if name == "o":
            kernel = jnp.asarray(weights["o_kernel"].reshape(-1, features).T)
        values = (kernel, jnp.asarray(weights[f"{name}_bias"].reshape(-1)))
        module = equinox.tree_at(lambda m, at=layer: (getattr(m, at).weight, getattr(m, at).bias), module, values)
    jitted = equinox.filter_jit(lambda module, x: jax.vmap(module)(x, x, x))
    return lambda x: jitted(module, x)


def _keras(weights: Weights) -> Call:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras  # pyright: ignore[reportMissingImports] -- an optional peer

    features, num_heads, width = weights["q_kernel"].shape
    layer = keras.layers.MultiHeadAttention(num_heads, width)
    layer.build((None, None, features), (None, None, features), (None, None, features))
    layer.set_weights([weights[f"{name}_{part}"] for name in "qkvo" for part in ("kernel", "bias")])
    groups = (layer.trainable_variables, layer.non_trainable_variables)
    trained, other = ([variable.value for variable in group] for group in groups)
    jitted = jax.jit(lambda trained, other, x: layer.stateless_call(trained, other, x, x, x, training=False)[0])
    return lambda x: jitted(trained, other, x)


PEERS: dict[str, Callable[[Weights], Call]] = {
    "flax.nnx.MultiHeadAttention": _flax,
    "equinox.nn.MultiheadAttention": _equinox,
    "keras.layers.MultiHeadAttention": _keras,
}
