"""Reading off a live torch.nn layer what its constructor was told."""

from ..core.activations import Activation

_FUNCTIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "tanh": "tanh"}
_MODULES = {"ReLU": "relu", "SiLU": "silu", "Tanh": "tanh"}


def activation_of(torch_activation) -> str | Activation:
    """The name of torch's function (`F.relu`, `F.gelu`) or activation module (`nn.ReLU()`, `nn.GELU("tanh")`).

    Raises:
        NotImplementedError: a callable without a known twin.
    """
    module = getattr(torch_activation, "__module__", None) or ""
    name = getattr(torch_activation, "__name__", "")
    if (module.startswith("torch") or type(torch_activation).__name__.startswith("builtin")) and name in _FUNCTIONS:
        return _FUNCTIONS[name]
    kind = type(torch_activation)
    if kind.__module__ == "torch.nn.modules.activation":
        if kind.__name__ == "GELU":
            return "gelu" if torch_activation.approximate == "none" else "gelu_pytorch_tanh"
        if kind.__name__ in _MODULES:
            return _MODULES[kind.__name__]
    raise NotImplementedError(
        f"`activation` {torch_activation!r} has no Flax twin; known are F.{', F.'.join(_FUNCTIONS)} and "
        f"nn.{', nn.'.join([*_MODULES, 'GELU'])}. Build the Flax layer with your own function and use load_state_dict."
    )
