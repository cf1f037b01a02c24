"""The twins of torch.nn's basic layers: values and gradients of all of them by one jitted function."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
from jaxattn._tensors import to_numpy
from jaxattn.convert.layout import same_bits
from jaxattn.layers import Activation, BatchNorm, Conv, Flatten, GroupNorm, PReLU
from jaxattn.parity.criterion import GRADIENT_TOLERANCE, OUTPUT_TOLERANCE, algorithm_verdict, rounding_verdict

from ..errors import refuses
from ..inputs import generator, randomise
from ..tolerances import close
from .layer_table import ACTIVATIONS, LAYERS, C

#: Ends of the pieces of the formulas, where torch's one-sided gradients count, and far out.
POINTS = [-20.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0, 30.0]


def inputs(name: str) -> np.ndarray:
    drawn = np.asarray(generator(name).standard_normal(LAYERS[name.rstrip("'")][1])) * 3
    drawn.reshape(-1)[: len(POINTS)] = POINTS[: drawn.size]
    return drawn


def random_statistics(module: nn.Module, name: str) -> nn.Module:
    """Running means and variances that are no zeros and ones."""
    for key, buffer in module.named_buffers():
        drawn = generator(f"{key} of {name}").uniform(0.5, 2.0, tuple(buffer.shape))
        buffer.copy_(torch.from_numpy(np.asarray(drawn)) if buffer.is_floating_point() else torch.tensor(7))
    return module


def torch_side(module: nn.Module, x: np.ndarray, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Output, gradient of the input and of each parameter, for the loss Σ output · cos(0, 1, 2, …)."""
    module = module.to(dtype)
    given = torch.from_numpy(np.asarray(x)).to(dtype).requires_grad_()
    output = module(given)
    cotangent = torch.arange(output.numel()).double().cos().reshape(output.shape).to(dtype)
    output.backward(cotangent)
    found = {"output": output.detach(), "input": given.grad, **{n: p.grad for n, p in module.named_parameters()}}
    module.zero_grad()
    return {name: value.double().numpy() for name, value in found.items()}


@jax.jit
def flax_sides(modules: dict[str, Any], arrays: dict[str, jax.Array]) -> Any:
    def outputs(modules, arrays):
        return {name: module(arrays[name]) for name, module in modules.items()}

    results, pullback = jax.vjp(outputs, modules, arrays)
    cotangents = jax.tree.map(
        lambda y: jnp.cos(jnp.arange(y.size, dtype=float)).reshape(y.shape).astype(y.dtype), results
    )
    return results, *pullback(cotangents)


@functools.cache
def both_sides(name: str) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
    """(ours, torch's) of every layer, computed in the dtype of that name on numbers that bfloat16 can hold."""
    dtype = getattr(torch, name)
    ours, theirs, twins, arrays = {}, {}, {}, {}
    for layer, (module, _) in LAYERS.items():
        random_statistics(randomise(module.float(), layer), layer).to(torch.bfloat16)
        x = inputs(layer).astype(jnp.bfloat16)
        theirs[layer] = torch_side(module.eval(), x.astype(np.float64), dtype)
        arrays[layer] = jnp.asarray(x.astype(jnp.dtype(name)))
        twins[layer] = jaxattn.from_torch(module.to(dtype))
    outputs, gradients, input_gradients = flax_sides(twins, arrays)
    for layer, twin in twins.items():
        named = {n: v for n, v in jaxattn.state_dict(gradients[layer], like=twin).items() if n in theirs[layer]}
        named |= {"output": outputs[layer], "input": input_gradients[layer]}
        ours[layer] = {key: np.asarray(value, np.float64) for key, value in named.items()}
    return ours, theirs


@functools.cache
def truth() -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
    with jax.enable_x64(True):
        ours, theirs = both_sides("float64")
    theirs["hardsigmoid"]["input"] *= (1 / 6) / float(np.float32(1 / 6))  # torch's gradient has 1 / 6 in float32
    return ours, theirs


def test_values_and_gradients_are_torchs():
    wrong = []
    for layer, theirs in truth()[1].items():
        ours = truth()[0][layer]
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            tolerance = OUTPUT_TOLERANCE if name == "output" else GRADIENT_TOLERANCE
            verdict = algorithm_verdict(
                ours[name], tensor, scale=max(1.0, float(np.abs(tensor).max())), tolerance=tolerance
            )
            wrong += [f"{layer} {name} {verdict.problem}"] if verdict.problem else []
    assert wrong == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_is_no_worse_than_torchs(dtype):
    ours, theirs = both_sides(dtype)
    worse = []
    for layer, exact in truth()[1].items():
        for name in ("output", "input"):
            scale = max(1.0, float(np.abs(exact[name]).max()))
            verdict, _ = rounding_verdict(
                ours[layer][name], theirs[layer][name], exact[name], scale=scale, dtype=jnp.dtype(dtype)
            )
            worse += [f"{layer} {name} {verdict.problem}"] if verdict.problem else []
    assert worse == []


def test_bfloat16_stays_and_every_state_dict_comes_back():
    for layer, (module, shape) in LAYERS.items():
        module = random_statistics(randomise(module.to(torch.bfloat16), layer), layer)
        twin = jaxattn.from_torch(module)
        theirs = {name: to_numpy(value) for name, value in module.state_dict().items()}
        ours = jaxattn.state_dict(twin)
        assert ours.keys() == theirs.keys() and all(same_bits(ours[name], theirs[name]) for name in theirs), layer
        assert jax.eval_shape(twin, jnp.zeros(shape, jnp.bfloat16)).dtype == jnp.bfloat16, layer
        jaxattn.to_torch(jaxattn.from_torch(random_statistics(randomise(module, "other"), "other").eval()), module)
        jaxattn.to_torch(twin, module)
        assert all(same_bits(to_numpy(value), theirs[name]) for name, value in module.state_dict().items()), layer


def test_a_mapped_layer_is_a_loop_over_it():
    """Also where shapes, channels and batches are those of the example alone."""
    others = {name: module for name, (module, _) in LAYERS.items() if name not in ACTIVATIONS}
    twins = {name: jaxattn.from_torch(module.float().eval()) for name, module in others.items()}
    arrays = {name: jnp.stack([jnp.asarray(inputs(name + k), jnp.float32) for k in ("", "'")]) for name in twins}

    @jax.jit
    def both(twins, arrays):
        mapped = {name: jax.vmap(twin)(arrays[name]) for name, twin in twins.items()}
        return mapped, {name: jax.lax.map(twin, arrays[name]) for name, twin in twins.items()}

    mapped, looped = both(twins, arrays)
    assert [name for name in twins if not close(mapped[name], looped[name])] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rms_norm_takes_the_epsilon_of_the_dtype_that_it_computes_in(dtype):
    """Inputs whose mean square is below it: the output tells which epsilon it was."""
    x = torch.full((3, C), 1e-4, dtype=dtype)
    ours = jaxattn.from_torch(nn.RMSNorm(C, dtype=dtype))(jnp.asarray(x.float().numpy(), str(dtype)[6:]))
    assert np.array_equal(np.asarray(ours, np.float32), nn.RMSNorm(C, dtype=dtype)(x).detach().float().numpy())


def test_an_embedding_looks_up_and_its_padding_row_is_not_trained():
    module = randomise(nn.Embedding(7, 5, padding_idx=-3), "padded")
    ids = np.array([[0, 4, 6], [4, 4, 1]])
    output = module(torch.from_numpy(ids))
    output.sum().backward()
    assert module.weight.grad is not None
    twin = jaxattn.from_torch(module)
    gradient = jax.grad(lambda m: m(jnp.asarray(ids)).sum())(twin)
    assert twin.padding_idx == 4 and np.array_equal(twin(ids), output.detach().numpy())
    assert np.array_equal(jaxattn.state_dict(gradient, like=twin)["weight"], module.weight.grad.numpy())


def test_a_square_kernel_is_transposed():
    module = nn.Linear(4, 4, bias=False)
    module.weight.data = torch.arange(16.0).reshape(4, 4)
    assert np.array_equal(jaxattn.from_torch(module)(jnp.eye(4)), np.arange(16).reshape(4, 4).T)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (nn.LayerNorm([3, C]), r"must normalise the last axis alone, got normalized_shape=\(3, 6\)"),
        (nn.Softmax(), "nn.Softmax must name its axis, got dim=None"),
        (nn.Softmin(), "nn.Softmin must name its axis, got dim=None"),
        (nn.RReLU().train(), "RReLU must be in evaluation mode.*call .eval.. on it first"),
        (nn.LSTM(C, 5), "no Flax twin for torch.nn.modules.rnn.LSTM: .*jax.lax.scan.*input, forget, cell, output"),
        (nn.Sequential(nn.GRUCell(C, 5)), "`0`: no Flax twin for torch.nn.modules.rnn.GRUCell: .*reset, update, new"),
        (nn.RNN(C, 5), "no Flax twin for torch.nn.modules.rnn.RNN: "),
    ],
)
def test_options_without_a_twin_are_refused(module, sentence):
    with pytest.raises(NotImplementedError, match=sentence):
        jaxattn.from_torch(module)


def test_an_activation_knows_its_constants():
    twin = jaxattn.from_torch(nn.LeakyReLU(0.3))
    assert (twin.name, twin.negative_slope) == ("leaky_relu", 0.3)
    elu: Any = Activation("elu")
    assert elu.alpha == 1.0
    with refuses(ValueError, "one of .*'gelu'.*got 'gleu'"):
        Activation("gleu")
    with refuses(TypeError, "`elu` takes alpha, got beta"):
        Activation("elu", beta=2.0)


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (
            lambda: Conv(6, 4, (3,), groups=4, rngs=rngs()),
            ValueError,
            "`groups` must divide the channels, got groups=4",
        ),
        (lambda: Conv(6, 4, (3,), padding="same", stride=(2,), rngs=rngs()), ValueError, "strides of 1, got stride="),
        (lambda: Conv(6, 4, (3, 2), stride=(2,), rngs=rngs()), ValueError, "`stride` must hold one size for each"),
        (lambda: Conv(6, 4, (3,), padding_mode="edge", rngs=rngs()), ValueError, "`padding_mode` must be one of"),
        (lambda: Conv(6, 4, (3,), rngs=rngs())(jnp.ones((7, 6))), ValueError, "6, .spatial. with 1 spatial axes, got"),
        (lambda: padded("reflect", 7), ValueError, "Padding by 'reflect' must take no more than the inputs have"),
        (lambda: padded("circular", 8), ValueError, "Padding by 'circular' must take no more than the inputs have"),
        (lambda: GroupNorm(4, 6), ValueError, "`num_groups` must divide `num_channels`, got num_groups=4"),
        (lambda: GroupNorm(2, 6)(jnp.ones((6, 2))), ValueError, r"must be \[B, 6, \*\], channels on axis 1"),
        (
            lambda: BatchNorm(6)(jnp.ones((1, 6)), deterministic=False),
            ValueError,
            "more than one value for each channel",
        ),
        (lambda: PReLU(6)(jnp.ones((6,))), ValueError, r"must be \[B, 6, \*\]"),
        (lambda: Activation("glu")(jnp.ones((6, 3))), ValueError, "halves axis -1, whose size must be even"),
        (
            lambda: Flatten(2, 1)(jnp.ones((2, 3, 4))),
            ValueError,
            "must be axes of the inputs in this order, got 2 to 1",
        ),
        (lambda: jaxattn.from_torch(nn.RReLU().eval())(1.0, deterministic=False), NotImplementedError, "draws a slope"),
    ],
)
def test_what_torch_refuses_is_refused(make, error, sentence):
    with refuses(error, sentence):
        make()


def padded(mode: str, size: int) -> Any:
    return Conv(6, 4, (3,), padding=(size,), padding_mode=mode, rngs=rngs())(jnp.ones((2, 6, 7)))
