"""transformers' RMSNorm classes: their formulas, and where each rounds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import jaxattn
from jaxattn.parity.criterion import OUTPUT_TOLERANCE, algorithm_verdict, rounding_verdict

from ..inputs import generator, randomise
from .parts import check, class_of_transformers

D = 7
#: transformers' models → (class, arguments) of their norms.
NORMS = {
    "llama": ("LlamaRMSNorm", (D, 1e-5)),
    "qwen3": ("Qwen3RMSNorm", (D, 1e-5)),
    "mistral": ("MistralRMSNorm", (D, 0.1)),
    "llama4": ("Llama4TextRMSNorm", (D, 1e-5)),
    "gemma": ("GemmaRMSNorm", (D, 1e-6)),
    "gemma3n": ("Gemma3nRMSNorm", (D, 1e-6)),
    "olmo2": ("Olmo2RMSNorm", (D, 1e-6)),
    "helium": ("HeliumRMSNorm", (D, 1e-8)),
    "moshi": ("MoshiRMSNorm", (D, 1e-8)),
    "nanochat": ("NanoChatRMSNorm", (1e-6,)),
    "t5": ("T5LayerNorm", (D, 1e-6)),
}


def norm(model: str) -> Any:
    name, arguments = NORMS[model]
    return randomise(class_of_transformers(model, name)(*arguments), f"{model} norm")


def gradients(call: Any, *given: torch.Tensor) -> dict[str, np.ndarray]:
    """Output and gradients for the loss Σ output · cos(0, 1, 2, …), in float64."""
    output = call(*given)
    output.backward(torch.arange(output.numel()).double().cos().reshape(output.shape).to(output.dtype))
    found = {"output": output.detach(), "input": given[0].grad}
    found |= {"weight": given[1].grad} if given[1:] else {}
    return {name: value.double().numpy() for name, value in found.items() if value is not None}


def flax_norms(twins: dict[str, Any], x: Any) -> dict[str, dict[str, np.ndarray]]:
    """The same of all twins, by one jitted function."""

    def outputs(twins, xs):
        return {name: twin(xs[name]) for name, twin in twins.items()}

    @jax.jit
    def run(twins, xs):
        results, pullback = jax.vjp(outputs, twins, xs)
        cotangents = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(y.dtype), results)
        return results, *pullback(cotangents)

    results, weights, inputs = run(twins, dict.fromkeys(twins, x))
    found = {name: {"output": results[name], "input": inputs[name]} for name in twins}
    for name, part in found.items():
        part |= jaxattn.state_dict(weights[name], like=twins[name])
    return {name: {key: np.asarray(v, np.float64) for key, v in part.items()} for name, part in found.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_norms_of_transformers(dtype):
    """The truth is torch's rms_norm in float64: transformers' own norms cast to float32 there, too."""
    x = generator("norms").standard_normal((5, 3, D)).astype(jnp.bfloat16)
    low, truth, twins = {}, {}, {}
    with jax.enable_x64(dtype == "float64"):
        for model in NORMS:
            module = norm(model).to(torch.bfloat16).to(getattr(torch, dtype))
            given = [torch.from_numpy(x.astype(np.float64)).requires_grad_()]
            given += [weight.detach().double().requires_grad_() for weight in module.parameters()]
            epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
            offset = 1.0 if model == "gemma" else 0.0

            def exact(x, weight=None, offset=offset, epsilon=epsilon):
                return F.rms_norm(x, (D,), None if weight is None else offset + weight, epsilon)

            truth[model] = gradients(exact, *given)
            low_x = given[0].detach().to(getattr(torch, dtype)).requires_grad_()
            low[model] = gradients(lambda x, *_, module=module: module(x), low_x, *module.parameters())
            twins[model] = jaxattn.from_torch(module)
        ours = flax_norms(twins, jnp.asarray(x, dtype))
    for model, tensors in truth.items():
        for name, tensor in tensors.items():
            scale = max(1.0, float(np.abs(tensor).max()))
            if dtype == "float64":
                verdict = algorithm_verdict(ours[model][name], tensor, scale=scale, tolerance=OUTPUT_TOLERANCE)
            else:
                given = (ours[model][name], low[model][name], tensor)
                verdict, _ = rounding_verdict(*given, scale=scale, dtype=jnp.dtype(dtype))
            assert verdict.problem is None, (model, name, verdict.problem)


def test_compare_and_trace_know_the_norms():
    check({"llama": norm("llama"), "t5": norm("t5")}, lambda _: (5, 3, D))
    module, other = norm("qwen3"), jaxattn.from_torch(norm("qwen3"))
    other.epsilon = 0.1
    cause = jaxattn.parity.trace(module, other, np.ones((2, D), np.float32)).cause
    assert cause is not None and cause.startswith("epsilon")


@pytest.mark.parametrize("seed", range(4))
def test_compare_blames_no_right_norm(seed):
    """All inside is float32: torch's float32 run equals its float64 run, which can't judge rounding then."""
    x = generator(f"limited {seed}").standard_normal((5, 3, 17)).astype(np.float32)
    for model in ("gemma", "gemma3n", "helium", "moshi", "llama", "t5"):
        name, arguments = NORMS[model]
        module = randomise(class_of_transformers(model, name)(17, *arguments[1:]), f"{model} norm")
        twin = jaxattn.from_torch(module)
        report = jaxattn.parity.compare(module, twin, x, seed=seed)
        report.assert_ok()
        assert "truth limited to float32 by aten._to_copy.default" in report.notes, model
        if seed == 0:
            twin.epsilon = 1e-4
            assert not jaxattn.parity.compare(module, twin, x).ok, model


@pytest.mark.parametrize("weight", ["bfloat16", "float32"])
@pytest.mark.parametrize("inputs", ["bfloat16", "float32"])
def test_norms_round_where_transformers_rounds(inputs, weight):
    """The dtype of each result, and bits that another order of the casts gives otherwise.

    Both sides compute in float32 up to a cast, and differ there by some 2⁻²³ of the value. Steps of bfloat16 are 2⁻⁸ to
    2⁻⁷ of it, so k·2⁻²³ crosses a midpoint between them once in 2¹⁵/k elements: with k = 8 that is 0.02 %, of 2,800
    elements less than one. A cast elsewhere rounds once more, which moves a result by a step in a large share of them.
    No element is apart by more than that one step, 2⁻⁷ of it at most.
    """
    x = torch.from_numpy(generator("cast order").standard_normal((400, D))).to(getattr(torch, inputs))
    for model in NORMS:
        module = norm(model).to(getattr(torch, weight))
        expected = module(x).detach()
        got = jaxattn.from_torch(module)(jnp.asarray(x.float().numpy(), inputs))
        assert str(expected.dtype) == f"torch.{got.dtype.name}", model
        apart = np.abs(np.asarray(got, np.float32) - expected.float().numpy())
        if expected.dtype == torch.bfloat16:
            assert np.mean(apart > 0) < 0.005, (model, np.mean(apart > 0))
        assert np.all(apart <= 2.0**-7 * np.abs(expected.float().numpy())), model


def test_gemmas_one_is_added_in_float32():
    """In bfloat16, 1 + 2⁻⁸ is 1."""
    module = class_of_transformers("gemma", "GemmaRMSNorm")(2).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.fill_(2.0**-8)
    twin = jaxattn.from_torch(module)
    x = jnp.asarray([[128.0, 128.0]], jnp.float32)
    assert np.allclose(twin(x), 1 + 2.0**-8, rtol=1e-6)
    assert twin(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("model", "name", "arguments"),
    [
        ("hy_v4", "HYV4UnweightedRMSNorm", ()),  # gives the factor, not the normalised input
        ("deepseek_v4", "DeepseekV4UnweightedRMSNorm", ()),  # rounds the factor
        ("chameleon", "ChameleonLayerNorm", ((3, D),)),
    ],
)
def test_a_class_of_such_a_name_with_another_formula_is_refused(model, name, arguments):
    with pytest.raises(NotImplementedError, match=f"no Flax twin for transformers.*{name}"):
        jaxattn.from_torch(class_of_transformers(model, name)(*arguments))


def test_a_subclass_or_a_copy_elsewhere_is_refused():
    llama = class_of_transformers("llama", "LlamaRMSNorm")

    class MyRMSNorm(llama):
        pass

    class Doubled(llama):
        def forward(self, hidden_states):
            return 2 * super().forward(hidden_states)

    Doubled.__module__, Doubled.__qualname__ = llama.__module__, "DoubledRMSNorm"
    Doubled.__name__ = "DoubledRMSNorm"
    for kind in (MyRMSNorm, Doubled):
        with pytest.raises(NotImplementedError, match="no Flax twin for"):
            jaxattn.from_torch(kind(D))
