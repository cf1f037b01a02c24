"""Reading off a live torch.nn layer or stack what its constructor was told."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from ..core.activations import Activation as ActivationFunction
from ..layers import Activation

Build = Callable[[Any], Any]

#: torch's functions that have a name in `core.activations`.
_NAMED = ("relu", "gelu", "silu", "tanh")
#: torch's functions that `layers.Activation` knows, with torch's default constants.
_MODULES = (
    "celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu6", "selu",
    "sigmoid", "softplus", "softsign",
)  # fmt: skip


def activation_of(torch_activation: Any, build: Build) -> str | ActivationFunction:
    """The activation of a layer: torch's function (`F.gelu`, `partial(F.gelu, approximate="tanh")`) or a module.

    Args:
        torch_activation: what the layer has as `activation`.
        build: makes the twin of a torch module.

    Raises:
        NotImplementedError: a callable without a known twin.
    """
    if hasattr(torch_activation, "named_parameters"):
        return build(torch_activation)
    function, constants = torch_activation, {}
    if isinstance(torch_activation, functools.partial) and not torch_activation.args:
        function, constants = torch_activation.func, torch_activation.keywords
    name = getattr(function, "__name__", "")
    if (getattr(function, "__module__", None) or "torch").startswith("torch"):
        if name == "gelu" and constants in ({"approximate": "none"}, {"approximate": "tanh"}):
            return "gelu" if constants["approximate"] == "none" else "gelu_pytorch_tanh"
        if name in _NAMED and not constants:
            return name
        if name in _MODULES:
            return Activation(name, **constants)
    raise NotImplementedError(
        f"`activation` {torch_activation!r} has no Flax twin; known are modules that have one and the functions "
        f"{', '.join(sorted((*_NAMED, *_MODULES)))}. Build the Flax layer with your own function and use "
        "load_state_dict."
    )


def layer_configuration(torch_layer: Any, build: Build, parts: tuple[str, ...]) -> dict[str, Any]:
    """Every child read off the live layer, where it may have been replaced.

    Args:
        torch_layer: the layer.
        build: makes the twin of a child.
        parts: names of the children, `activation` among them.
    """
    children = {name: build(getattr(torch_layer, name)) for name in parts if name != "activation"}
    return {
        "d_model": torch_layer.self_attn.embed_dim,
        "nhead": torch_layer.self_attn.num_heads,
        "norm_first": torch_layer.norm_first,
        "children": {**children, "activation": activation_of(_active(torch_layer), build)},
    }


def _active(torch_layer: Any) -> Any:
    """The activation that the layer computes, which is not always the one that it has.

    Copying an nn.TransformerDecoderLayer, as nn.TransformerDecoder and nn.Transformer do, puts F.relu before its
    activation when that is a module.
    """
    has, computes = dict(torch_layer.named_children()).get("activation"), torch_layer.activation
    if has is None or has is computes:
        return computes
    sentence = (
        f"A {type(torch_layer).__name__} has the activation {has!r} but PyTorch computes {computes.__name__}: its own "
        "copies of the layer lost the module. "
    )
    repair = (
        "To use the module, assign it again in PyTorch: `layer.activation = "
        'dict(layer.named_children())["activation"]`.'
    )
    if next(has.parameters(), None) is not None:
        raise NotImplementedError(f"{sentence}Its parameters are never used. {repair}")
    warnings.warn(f"{sentence}So does the Flax twin. {repair}", stacklevel=2)
    return computes


def stack_configuration(torch_stack: Any, build: Build, layer: str) -> dict[str, Any]:
    """The layers, which may differ, and the norm; `layer` is the constructor's name for the former."""
    return {
        layer: [build(torch_layer) for torch_layer in torch_stack.layers],
        "num_layers": len(torch_stack.layers),
        "norm": None if torch_stack.norm is None else build(torch_stack.norm),
    }
