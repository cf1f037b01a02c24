"""from_torch: exact types only, configuration and dtype off the live module."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import jaxattn
import torchref
from jaxattn import ConversionError


def test_configuration_is_read_off_the_module():
    twin = jaxattn.from_torch(nn.MultiheadAttention(22, 2, dropout=0.3, kdim=13, batch_first=True, add_zero_attn=True))
    assert (twin.embed_dim, twin.num_heads, twin.kdim, twin.vdim, twin.dropout) == (22, 2, 13, 22, 0.3)
    assert twin.batch_first and twin.add_zero_attn and twin.bias_k is None
    encoder = nn.TransformerEncoderLayer(22, 2, 13, 0.2, "gelu", 0.5, True, True, False)
    twin = jaxattn.from_torch(encoder)
    assert twin.norm_first and twin.dropout.rate == 0.2 and twin.norm1.epsilon == 0.5 and twin.linear1.bias is None


def test_layers_of_one_stack_may_differ():
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(22, 2, 13), 2, enable_nested_tensor=False)
    stack.layers[1] = nn.TransformerEncoderLayer(22, 2, 7, norm_first=True)
    twin = jaxattn.from_torch(stack)
    assert [layer.norm_first for layer in twin.layers] == [False, True]
    assert [layer.linear1.kernel.shape for layer in twin.layers] == [(22, 13), (22, 7)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_parameters_keep_their_dtype(dtype):
    twin = jaxattn.from_torch(torchref.MultiHeadSelfAttention(22, 2).to(dtype), dtype=jnp.float32)
    assert str(twin.Wq.kernel.dtype) == str(dtype).removeprefix("torch.")
    assert twin(np.ones((3, 22), np.float32)).output.dtype == jnp.float32


def test_precision_reaches_every_product():
    twin = jaxattn.from_torch(nn.TransformerEncoderLayer(22, 2, 13), precision="highest")
    jaxpr = str(jax.make_jaxpr(lambda m, x: m(x))(twin, np.ones((5, 22), np.float32)))
    assert jaxpr.count("dot_general[") == jaxpr.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") > 4


def test_weights_are_those_that_the_module_computes_with():
    """Not those that a hook gives to its state dict; and state that is no tensor is none of them."""

    class Telling(nn.Linear):
        def get_extra_state(self):
            return {"told": 1}

    x, module = torch.randn(3, 5), nn.Linear(5, 7)
    module.register_state_dict_post_hook(lambda module, found, path, _: found.update(weight=2 * found["weight"]))
    twin = jaxattn.from_torch(module)
    assert np.allclose(twin(x.numpy()), module(x).detach(), atol=1e-6)
    jaxattn.to_torch(twin, other := Telling(5, 7))
    assert torch.equal(other.weight, module.weight)
    jaxattn.parity.compare(other, twin, x.numpy()).assert_ok()
    assert jaxattn.parity.trace(module, twin, x.numpy()).ok


def test_a_subclass_is_refused_by_name():
    class Custom(nn.MultiheadAttention):
        pass

    with pytest.raises(NotImplementedError, match=r"no Flax twin for .*Custom, .* than .*MultiheadAttention") as caught:
        jaxattn.from_torch(Custom(22, 2))
    assert "Next: write a Flax class for `Custom`" in str(caught.value)


def test_the_report_pairs_every_module_and_says_what_was_done():
    layer = nn.TransformerEncoderLayer(22, 2, 13).eval()
    report = jaxattn.convert.port_report(jaxattn.from_torch(layer))
    assert report is not None and report.torch_class.endswith("TransformerEncoderLayer")
    assert report.training is None and not report.unwrapped and not report.left
    parts = {path for path, _ in layer.named_modules()}
    assert report.twins == {path: path for path in parts}
    assert jaxattn.convert.port_report(jaxattn.MyAttn(3, 4, 5, 6, 7, rngs=nnx.Rngs(0))) is None


def test_an_unknown_child_is_refused_by_name():
    stack = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(22, 2, 13), 1, nn.InstanceNorm1d(22), enable_nested_tensor=False
    )
    with pytest.raises(NotImplementedError, match="InstanceNorm1d"):
        jaxattn.from_torch(stack)


def test_double_modules_need_64_bit_types():
    with pytest.raises(ConversionError, match="64-bit types are off"):
        jaxattn.from_torch(torchref.MultiHeadSelfAttention(22, 2).double())


def test_meta_modules_are_refused_naming_the_keys():
    with pytest.raises(ConversionError, match="`Wq.weight` is a meta tensor"):
        jaxattn.from_torch(torchref.MultiHeadSelfAttention(22, 2, device="meta"))


def test_the_torch_module_is_left_as_it_was():
    oracle = torchref.MultiHeadSelfAttention(22, 2).train()
    before = {key: value.clone() for key, value in oracle.state_dict().items()}
    twin = jaxattn.from_torch(oracle)
    twin.Wq.bias[...] = jnp.zeros(22)
    assert oracle.training and all(torch.equal(oracle.state_dict()[key], value) for key, value in before.items())


def test_training_mode_with_dropout_is_told():
    layer = nn.TransformerEncoderLayer(22, 2, 13)
    with pytest.warns(UserWarning, match="only when called with deterministic=False"):
        jaxattn.from_torch(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxattn.from_torch(layer.eval())
        jaxattn.from_torch(nn.MultiheadAttention(22, 2))


def test_register_adds_a_twin():
    name = f"{torchref.MyAttn.__module__}.Doubled"
    torch_class = type("Doubled", (torchref.MyAttn,), {"__module__": torchref.MyAttn.__module__})

    @jaxattn.convert.register(name)
    class Doubled(jaxattn.MyAttn):
        pass

    twin = jaxattn.from_torch(torch_class(3, 4, 5, 6, 7))
    assert type(twin) is Doubled and isinstance(twin, nnx.Module) and twin.value_size1 == 5
