"""Live PyTorch modules into their Flax twins."""

import warnings
from typing import Any

import jax.numpy as jnp
from flax import nnx

from .._checks import ConversionError
from .apply import load_state_dict
from .problems import dtype_name, dtype_problems
from .registry import Twin, registered_names, twin_of
from .tensors import tensor_problem


def from_torch(torch_module: Any, *, dtype: Any = None, precision: Any = None) -> Any:
    """The Flax twin of a live PyTorch module, with its configuration and its weights.

    Matched on the exact type: a subclass may compute something else. Parameters keep their dtype. `.training` is not
    carried over: dropout is a matter of each call (`deterministic=False`), and a module that trains with dropout gets a
    warning that says so.

    Args:
        torch_module: a module of torchref, or one of torch.nn's attention and transformer classes.
        dtype: of the twin's computation; None promotes inputs and parameters.
        precision: of the twin's matrix products.

    Raises:
        NotImplementedError: no twin is registered for this class; the message lists those that are.
        ConversionError: weights that can't be taken over (meta tensors, float64 with 64-bit types off, …).
    """
    _twin(torch_module)
    _tell_training(torch_module)
    weights = torch_module.state_dict()
    problems = [f"`{name}` {tensor_problem(tensor)}" for name, tensor in weights.items() if tensor_problem(tensor)]
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            problems += dtype_problems(name, dtype_name(tensor), dtype_name(tensor))
    if problems:
        raise ConversionError("The module holds tensors that can't be taken over.", problems)
    module = nnx.eval_shape(lambda: _build(torch_module, {"dtype": dtype, "precision": precision}))
    if weights:
        load_state_dict(module, weights)
    return module


def _build(torch_module: Any, options: dict[str, Any]) -> Any:
    twin = _twin(torch_module)
    arguments = twin.configuration(torch_module, lambda child: _build(child, options))
    ours = {**options, "param_dtype": _param_dtype(torch_module), "rngs": nnx.Rngs(0)}
    return twin.factory(**arguments, **{name: value for name, value in ours.items() if name in twin.options})


def _twin(torch_module: Any) -> Twin:
    twin = twin_of(type(torch_module))
    if twin is None:
        kind = f"{type(torch_module).__module__}.{type(torch_module).__qualname__}"
        raise NotImplementedError(
            f"`from_torch` has no Flax twin for {kind}; known are {', '.join(registered_names())}. "
            "Add one with jaxattn.convert.register, or build the Flax module and use load_state_dict."
        )
    return twin


def _tell_training(torch_module: Any) -> None:
    rate = {"Dropout": "p", "MultiheadAttention": "dropout"}
    rates = [getattr(part, rate[type(part).__name__]) for part in torch_module.modules() if type(part).__name__ in rate]
    if torch_module.training and any(rates):
        warnings.warn(
            f"{type(torch_module).__name__} is in training mode with dropout; its Flax twin applies dropout only when "
            "called with deterministic=False and rngs=nnx.Rngs(dropout=seed). Call .eval() first to say so yourself.",
            stacklevel=3,
        )


def _param_dtype(torch_module: Any) -> Any:
    parameter = next(iter(torch_module.parameters()), None)
    return jnp.float32 if parameter is None else jnp.dtype(str(parameter.dtype).removeprefix("torch."))
