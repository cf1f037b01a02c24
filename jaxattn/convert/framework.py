"""PyTorch's basic layers and their Flax counterparts: their twins and their rules."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from ..layers import Activation, Attend, Dropout, Embedding, PReLU, RMSNorm, Sequential, layer_norm, linear
from .registry import class_name, register
from .rules import IDENTITY, TRANSPOSE, Rule, Transform

#: Flax layer → (Flax name, PyTorch name, transform) of each parameter.
LAYER_RULES: dict[type, tuple[tuple[str, str, Transform], ...]] = {
    nnx.Linear: (("kernel", "weight", TRANSPOSE), ("bias", "bias", IDENTITY)),
    nnx.LayerNorm: (("scale", "weight", IDENTITY), ("bias", "bias", IDENTITY)),
    nnx.RMSNorm: (("scale", "weight", IDENTITY),),
    RMSNorm: (("scale", "weight", IDENTITY),),
    nnx.Embed: (("embedding", "weight", IDENTITY),),
}

#: Class in torch.nn.modules.activation → our name of it, and torch's attributes that are its constants.
_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CELU": ("celu", ("alpha",)),
    "ELU": ("elu", ("alpha",)),
    "Hardsigmoid": ("hardsigmoid", ()),
    "Hardswish": ("hardswish", ()),
    "Hardtanh": ("hardtanh", ("min_val", "max_val")),
    "LeakyReLU": ("leaky_relu", ("negative_slope",)),
    "LogSigmoid": ("logsigmoid", ()),
    "Mish": ("mish", ()),
    "ReLU": ("relu", ()),
    "ReLU6": ("relu6", ()),
    "SELU": ("selu", ()),
    "SiLU": ("silu", ()),
    "Sigmoid": ("sigmoid", ()),
    "Softplus": ("softplus", ("beta", "threshold")),
    "Softsign": ("softsign", ()),
    "Tanh": ("tanh", ()),
}


def layer_rules(layer: nnx.Module) -> dict[str, Rule]:
    """The rules of a Flax layer by parameter name; empty for a class that keeps PyTorch's names."""
    rows = next((LAYER_RULES[kind] for kind in type(layer).__mro__ if kind in LAYER_RULES), ())
    return {name: Rule((source,), name, transform) for name, source, transform in rows}


def _linear(torch_module, build):
    del build
    return {
        "in_features": torch_module.in_features,
        "out_features": torch_module.out_features,
        "use_bias": torch_module.bias is not None,
    }


def _layer_norm(torch_module, build):
    del build
    if len(torch_module.normalized_shape) != 1:
        raise NotImplementedError(
            "nn.LayerNorm must normalise the last axis alone, got "
            f"normalized_shape={tuple(torch_module.normalized_shape)}."
        )
    return {
        "features": torch_module.normalized_shape[0],
        "epsilon": torch_module.eps,
        "use_scale": torch_module.weight is not None,
        "use_bias": torch_module.bias is not None,
    }


def _rms_norm(torch_module, build):
    del build
    return {
        "features": tuple(torch_module.normalized_shape),
        "epsilon": torch_module.eps,
        "use_scale": torch_module.weight is not None,
    }


def _embedding(torch_module, build):
    del build
    return {
        "num_embeddings": torch_module.num_embeddings,
        "features": torch_module.embedding_dim,
        "padding_idx": torch_module.padding_idx,
    }


def _constants(name: str, attributes: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    return lambda torch_module, build: {"name": name, **{key: getattr(torch_module, key) for key in attributes}}


def _gelu(torch_module, build):
    del build
    return {"name": "gelu" if torch_module.approximate == "none" else "gelu_pytorch_tanh"}


def _softmax(torch_module, build):
    del build
    if torch_module.dim is None:
        raise NotImplementedError("nn.Softmax must name its axis, got dim=None, which goes by the rank of the input.")
    return {"name": "softmax", "dim": torch_module.dim}


def _sequential(torch_module, build):
    names, children = list(torch_module._modules), list(torch_module)
    embeddings = {
        id(child.weight): place
        for place, child in enumerate(children)
        if class_name(child) == "torch.nn.modules.sparse.Embedding"
    }
    layers = []
    for child in children:
        linear_class = class_name(child) == "torch.nn.modules.linear.Linear"
        tied = linear_class and child.bias is None and id(child.weight) in embeddings
        layers.append(Attend(embeddings[id(child.weight)]) if tied else build(child))
    return {"layers": layers, "names": names}


register("torch.nn.modules.linear.Linear", configuration=_linear)(linear)
register("torch.nn.modules.linear.NonDynamicallyQuantizableLinear", configuration=_linear)(linear)
register("torch.nn.modules.linear.Identity", configuration=_constants("identity", ()))(Activation)
register("torch.nn.modules.normalization.LayerNorm", configuration=_layer_norm)(layer_norm)
register("torch.nn.modules.normalization.RMSNorm", configuration=_rms_norm)(RMSNorm)
register("torch.nn.modules.sparse.Embedding", configuration=_embedding)(Embedding)
register("torch.nn.modules.dropout.Dropout", configuration=lambda module, build: {"rate": module.p})(Dropout)
register("torch.nn.modules.activation.PReLU")(PReLU)
register("torch.nn.modules.activation.GELU", configuration=_gelu)(Activation)
register("torch.nn.modules.container.Sequential", configuration=_sequential)(Sequential)
for _torch_name, (_name, _attributes) in _ACTIVATIONS.items():
    register(f"torch.nn.modules.activation.{_torch_name}", configuration=_constants(_name, _attributes))(Activation)
register("torch.nn.modules.activation.Softmax", configuration=_softmax)(Activation)
