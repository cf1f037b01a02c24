"""What compare takes, refuses, finds and leaves alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
import torchref
from jaxattn.parity import compare
from jaxattn.parity.limits import _dropout_rate

B, T, D, F = 3, 5, 22, 7


class TorchExp(nn.Module):
    """Computes in float32 whatever comes, as the norms of some models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, F)

    def forward(self, x):
        return self.inner(x).float().exp().to(x.dtype)


class FlaxExp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, factor: float, param_dtype):
        self.inner = nnx.Linear(D, F, param_dtype=param_dtype, rngs=rngs)
        self.factor = factor

    def __call__(self, x):
        return jnp.exp(self.inner(x)) * self.factor


class TorchTable(nn.Module):
    """Adds a constant that was rounded to float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, D).sin())

    def forward(self, x):
        return x + self.table


class FlaxTable(nnx.Module):
    def __call__(self, x):
        return x + jnp.asarray(np.sin(np.linspace(0, 1, D)), x.dtype)


class TorchPair(nn.Module):
    """Everything that an argument can be; writes into its argument."""

    def forward(self, x, *, extra, flag=False):
        x += extra["shift"] if flag else 0
        return {"sum": x.sum(-1), "nested": (x[..., extra["index"]], None), "index": x.argmax(-1)}


class FlaxPair(nnx.Module):
    def __call__(self, x, *, extra, flag=False):
        x = x + (extra["shift"] if flag else 0)
        return {"index": x.argmax(-1), "nested": (x[..., extra["index"]], None), "sum": x.sum(-1)}


class Same(nnx.Module):
    def __call__(self, x):
        return x


class Reshaped(nnx.Module):
    def __call__(self, x):
        return x[None]


class TorchProduct(nn.Module):
    def forward(self, a, b):
        return a * b


class FlaxProduct(nnx.Module):
    def __call__(self, a, b):
        return a * b


def twins(dtype: torch.dtype = torch.float32, factor: float = 1.0) -> tuple[nn.Module, nnx.Module]:
    param_dtype = jnp.dtype(str(dtype).removeprefix("torch."))
    module, twin = TorchExp().to(dtype).eval(), FlaxExp(nnx.Rngs(0), factor, param_dtype)
    jaxattn.load_state_dict(twin, module.state_dict())
    return module, twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_truth_in_float32_is_found_and_judged_as_float32(dtype: torch.dtype, draw) -> None:
    module, twin = twins(dtype)
    report = compare(module, twin, draw(B, D))
    report.assert_ok()
    assert report.notes == ("truth limited to float32 by aten._to_copy.default",)
    assert report.row("output").limited and report.row("output").verdict == "ok, float32-limited"
    allowed = report.row("output").allowed_float64
    assert allowed is not None and allowed > 1e-8


def test_a_wrong_twin_of_a_limited_truth_fails(draw) -> None:
    report = compare(*twins(factor=1 + 2e-6), draw(B, D))
    assert report.row("output").problems[0].startswith("float64: ")


def test_a_constant_rounded_to_float32_is_found(draw) -> None:
    report = compare(TorchTable(), FlaxTable(), draw(B, D))
    report.assert_ok()
    assert report.notes == (
        "truth limited to float32 by buffer `table` (float32)",
        "buffers of the torch module that the Flax module doesn't hold: `table`",
    )


def test_a_float64_run_is_not_limited(randomised, draw) -> None:
    report = compare(*(module := randomised(nn.Linear(D, F)), jaxattn.from_torch(module)), draw(B, D))
    assert not report.notes and not report.row("output").limited


@pytest.mark.parametrize("fast_path", [True, False])
def test_nothing_is_changed(fast_path: bool, randomised, draw) -> None:
    module = randomised(nn.Linear(D, F), torch.bfloat16)
    module.bias.requires_grad_(False)
    twin: Any = jaxattn.from_torch(module, dtype=jnp.float32)
    bits = {name: value.view(torch.int16).clone() for name, value in module.state_dict().items()}
    flax_bits = {name: value.tobytes() for name, value in jaxattn.state_dict(twin).items()}
    x = torch.from_numpy(draw(B, D)).bfloat16()
    given, rng = x.clone(), torch.get_rng_state()
    found = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast_path)
    try:
        with torch.inference_mode():
            compare(module, twin, x)
        assert torch.backends.mha.get_fastpath_enabled() is fast_path
    finally:
        torch.backends.mha.set_fastpath_enabled(found)
    assert all(value.dtype == torch.bfloat16 for value in module.state_dict().values())
    assert all(torch.equal(value.view(torch.int16), bits[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.weight.requires_grad and not module.bias.requires_grad and not module.training
    assert torch.equal(x, given) and torch.equal(torch.get_rng_state(), rng)
    assert {name: value.tobytes() for name, value in jaxattn.state_dict(twin).items()} == flax_bits
    assert all(value.dtype == jnp.bfloat16 for value in jaxattn.state_dict(twin).values())
    assert twin.dtype == jnp.float32
    assert jnp.asarray(1.0).dtype == jnp.float32


def test_the_settings_of_the_runs(draw) -> None:
    """Both modules refuse to run in others."""

    class Watching(nn.Module):
        def forward(self, x):
            assert not torch.backends.mha.get_fastpath_enabled()
            assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
            assert torch.get_float32_matmul_precision() == "highest"
            return x

    class FlaxWatching(nnx.Module):
        def __call__(self, x):
            assert str(jax.config.jax_default_matmul_precision) == "highest"  # pyright: ignore[reportAttributeAccessIssue] -- made at run time
            return x

    torch.set_float32_matmul_precision("medium")
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), jax.default_matmul_precision("bfloat16"):
            compare(Watching(), FlaxWatching(), draw(B, D)).assert_ok()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_buffers_are_not_written(draw) -> None:
    class Counting(nn.Module):
        calls: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return x

    module = Counting()
    with pytest.raises(ValueError, match=r"`output` torch \(3, 22\), Flax \(1, 3, 22\)"):
        compare(module, Reshaped(), draw(B, D))
    assert not module.calls.any()


def test_one_array_given_twice_has_one_gradient(draw) -> None:
    x = draw(B, D)
    shared, apart = compare(TorchProduct(), FlaxProduct(), x, x), compare(TorchProduct(), FlaxProduct(), x, x.copy())
    shared.assert_ok()
    apart.assert_ok()
    assert [row.what for row in shared.rows][2:] == ["gradient of a = b"]
    assert [row.what for row in apart.rows][2:] == ["gradient of a", "gradient of b"]


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, torch.from_numpy])
def test_arguments_of_any_framework_nested_and_flags(convert, draw) -> None:
    extra = {"shift": convert(draw(D)), "index": convert(np.array([3, 1]))}
    x = convert(draw(B, D))
    report = compare(TorchPair(), FlaxPair(), x, extra=extra, flag=True)
    report.assert_ok()
    assert [row.what for row in report.rows][1:] == [
        *("sum", "nested[0]", "index"),
        *("gradient of x", "gradient of extra['shift']"),
    ]
    assert report.row("index").error is None and report.row("index").allowed_float64 == 0.0


def test_float64_inputs_are_rounded_once_for_all_runs(randomised) -> None:
    module = randomised(nn.Linear(D, F))
    x = np.random.default_rng(0).standard_normal((B, D))
    twin = jaxattn.from_torch(module)
    assert compare(module, twin, x).to_json() == compare(module, twin, x.astype(np.float32)).to_json()


def test_seed_sets_the_cotangents(randomised, draw) -> None:
    module = randomised(nn.Linear(D, F))
    twin, x = jaxattn.from_torch(module), draw(B, D)
    rows = [compare(module, twin, x, seed=seed).row("gradient of bias").allowed for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_nan_everywhere_compares_nothing_and_fails(randomised, draw) -> None:
    module = randomised(torchref.MultiHeadSelfAttention(22, 2))
    module.Wq.bias.data[:] = torch.nan
    twin = jaxattn.from_torch(module)
    report = compare(module, twin, draw(3, 5, 22))
    assert not report.ok and "nothing to compare" in "".join(report.row("output").problems)


def test_nan_rows_at_the_same_places_pass(randomised, draw) -> None:
    """torch.nn.MultiheadAttention gives NaN for a query with nothing to attend when it returns weights."""
    module = randomised(nn.MultiheadAttention(D, 2, batch_first=True))
    blocked = np.zeros((T, T), bool)
    blocked[2] = True
    x = draw(B, T, D)
    report = compare(module, jaxattn.from_torch(module), x, x, x, attn_mask=blocked)
    for name in ("output", "weights", "gradient of query = key = value", "gradient of out_proj.weight"):
        assert report.row(name).ok
    assert report.row("gradient of query = key = value").error == 0.0


def test_active_dropout_is_refused(draw) -> None:
    module = nn.TransformerEncoderLayer(D, 2, 29)
    twin = jaxattn.from_torch(module)
    with pytest.raises(ValueError, match=r"call torch_module.eval\(\)") as caught:
        compare(module, twin, draw(T, B, D))
    assert "`dropout1`" in str(caught.value) and "`self_attn`" in str(caught.value)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_a_fused_attention_kernel_is_random_only_with_a_rate(rate: float) -> None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert torch.Tag.nondeterministic_seeded in kernel.tags
    assert _dropout_rate(kernel, (None, None, None, rate), {}) == rate
    assert _dropout_rate(kernel, (None, None, None), {"dropout_p": rate}) == rate
    assert _dropout_rate(kernel, (None, None, None), {}) == 0.0
    assert _dropout_rate(torch.ops.aten.bernoulli_.float, (None, rate), {}) is None


def test_training_mode_without_dropout_is_fine(draw) -> None:
    report = compare(nn.Dropout(0.0).train(), Same(), draw(B, D))
    report.assert_ok()
    assert report.conditions["torch_training"] is True


def test_active_flax_dropout_is_refused(draw) -> None:
    class Dropping(nnx.Module):
        def __init__(self):
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.drop(x)

    with pytest.raises(ValueError, match="nnx.Dropout `drop`"):
        compare(nn.Identity(), Dropping(), draw(B, D))


def test_another_structure_is_refused(randomised, draw) -> None:
    module = randomised(torchref.ScaledDotProductSelfAttention(D))
    message = r"torch \[0\] \(3, 5, 22\), \[1\] \(3, 5, 5\), from Flax output \(3, 5, 22\)"
    with pytest.raises(ValueError, match=message):
        compare(module, Same(), draw(B, T, D))


def test_modules_in_the_wrong_order_are_refused() -> None:
    # The second is the annotations' own sentence, which comes first while they are executed.
    with pytest.raises(TypeError, match="then a flax nnx.Module, got FlaxTable and TorchTable|Type-check error"):
        compare(FlaxTable(), TorchTable())  # pyright: ignore[reportArgumentType] -- that is the point
