"""PyTorch's and transformers' activations and their twins: a table."""

from collections.abc import Callable
from typing import Any

from ..layers import Activation, PReLU, RReLU
from .registry import register

#: Class in torch.nn.modules.activation → our name of it, and torch's attributes that are its constants.
_TORCH: dict[str, tuple[str, tuple[str, ...]]] = {
    "CELU": ("celu", ("alpha",)),
    "ELU": ("elu", ("alpha",)),
    "GLU": ("glu", ("dim",)),
    "Hardshrink": ("hardshrink", ("lambd",)),
    "Hardsigmoid": ("hardsigmoid", ()),
    "Hardswish": ("hardswish", ()),
    "Hardtanh": ("hardtanh", ("min_val", "max_val")),
    "LeakyReLU": ("leaky_relu", ("negative_slope",)),
    "LogSigmoid": ("logsigmoid", ()),
    "LogSoftmax": ("log_softmax", ("dim",)),
    "Mish": ("mish", ()),
    "ReLU": ("relu", ()),
    "ReLU6": ("relu6", ()),
    "SELU": ("selu", ()),
    "SiLU": ("silu", ()),
    "Sigmoid": ("sigmoid", ()),
    "Softmax": ("softmax", ("dim",)),
    "Softmin": ("softmin", ("dim",)),
    "Softplus": ("softplus", ("beta", "threshold")),
    "Softshrink": ("softshrink", ("lambd",)),
    "Softsign": ("softsign", ()),
    "Tanh": ("tanh", ()),
    "Tanhshrink": ("tanhshrink", ()),
    "Threshold": ("threshold", ("threshold", "value")),
}
#: Class in transformers.activations → the same.
_TRANSFORMERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "AccurateGELUActivation": ("gelu_new", ()),
    "ClippedGELUActivation": ("clipped_gelu", ("min", "max")),
    "FastGELUActivation": ("gelu_fast", ()),
    "GELUActivation": ("gelu", ()),
    "GELUTanh": ("gelu_pytorch_tanh", ()),
    "LaplaceActivation": ("laplace", ()),
    "LinearActivation": ("identity", ()),
    "MishActivation": ("mish", ()),
    "NewGELUActivation": ("gelu_new", ()),
    "PytorchGELUTanh": ("gelu_pytorch_tanh", ()),
    "QuickGELUActivation": ("quick_gelu", ()),
    "ReLUSquaredActivation": ("relu_squared", ()),
    "SiLUActivation": ("silu", ()),
    "SqrtSoftplusActivation": ("sqrt_softplus", ()),
}


def _constants(name: str, attributes: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    def configuration(torch_module: Any, build: Any) -> dict[str, Any]:
        del build
        constants = {key: getattr(torch_module, key) for key in attributes}
        if constants.get("dim", 0) is None:
            raise NotImplementedError(
                f"nn.{type(torch_module).__name__} must name its axis, got dim=None, which goes by the rank of the "
                "input."
            )
        return {"name": name, **constants}

    return configuration


def _gelu(torch_module: Any, build: Any) -> dict[str, Any]:
    del build
    return {"name": "gelu" if torch_module.approximate == "none" else "gelu_pytorch_tanh"}


def _rrelu(torch_module: Any, build: Any) -> dict[str, Any]:
    del build
    if torch_module.training:
        raise NotImplementedError(
            "nn.RReLU must be in evaluation mode, where its slope is fixed, got training mode, in which it draws one "
            "for each element: call .eval() on it first, or train with LeakyReLU."
        )
    return {"lower": torch_module.lower, "upper": torch_module.upper}


for _name, (_ours, _attributes) in _TORCH.items():
    register(f"torch.nn.modules.activation.{_name}", configuration=_constants(_ours, _attributes))(Activation)
for _name, (_ours, _attributes) in _TRANSFORMERS.items():
    register(f"transformers.activations.{_name}", configuration=_constants(_ours, _attributes))(Activation)
register("torch.nn.modules.activation.GELU", configuration=_gelu)(Activation)
register("torch.nn.modules.activation.PReLU")(PReLU)
register("torch.nn.modules.activation.RReLU", configuration=_rrelu)(RReLU)
register("torch.nn.modules.activation.Softmax2d", configuration=lambda *_: {"name": "softmax", "dim": -3})(Activation)
register("torch.nn.modules.linear.Identity", configuration=_constants("identity", ()))(Activation)
