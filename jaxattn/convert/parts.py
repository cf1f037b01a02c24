"""The parts of a model whose forward pass is its own code: what has a twin, with weights, by path."""

import difflib
import warnings
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import ConversionError
from .._tensors import as_numpy, tensor_problem
from ..layers import FrozenParam
from .build import abstract_twin, fill, live_tensors, new_report, paths_of_tensors, same_tensor, training_sentence
from .folding import folded_sentences
from .naming import attribute, under
from .port import PortReport
from .problems import dtype_name, dtype_problems
from .refuse import refusals, whole_refusal
from .registry import class_name, twin_of
from .unwrap import Plain, reparametrised, unwrap

_CONTAINERS = ("torch.nn.modules.container.ModuleList", "torch.nn.modules.container.ModuleDict")
_OWN_FORWARD = "has a forward of its own"
_EMBEDDING = "torch.nn.modules.sparse.Embedding"


class Twins(dict[str, Any]):
    """Path → Flax module, or nnx.Param for a parameter that no such module owns; `report` says what was left."""

    report: PortReport

    def __missing__(self, path: str) -> Any:
        if path in self.report.left:
            raise KeyError(f"`{path}` has no twin: it {self.report.left[path]}")
        parent = next((name for name in self if name and path.startswith(f"{name}.")), None)
        if parent:
            raise KeyError(f"`{path}` is a part of twins[{parent!r}]: take it from there.")
        close = difflib.get_close_matches(path, list(self), n=1) or list(self)[:1]
        raise KeyError(f"`{path}` is no path of a convertible module; did you mean {close}? There are {list(self)}.")


@dataclass
class Plan:
    """What can be brought over: path → (PyTorch module, abstract twin), path → parameter, path → why not."""

    modules: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def twins(torch_model: Any, *, dtype: Any = None, precision: Any = None, merge: bool = False) -> Twins:
    """The Flax twins of a model's parts, with weights: the outermost modules that can be converted, by path.

    What such a module doesn't own, as a class token, is an nnx.Param (FrozenParam if frozen) under its path, in
    PyTorch's layout. Write a Flax class that has them under PyTorch's names, and `load_state_dict`, `state_dict`,
    `to_torch` and `parity.compare` work on it. A tensor that two parts share comes with the first, or the embedding.

    Args:
        torch_model: any torch.nn.Module.
        dtype: of the twins' computation; None promotes inputs and parameters.
        precision: of the twins' matrix products.
        merge: take the effective weight of reparametrised modules.

    Returns:
        A dict whose `report.left` tells what has no twin and why, and whose missing keys explain themselves.

    Raises:
        ConversionError: nothing in the model can be converted.
    """
    plain = unwrap(torch_model, merge=merge)
    plan = make_plan(plain, {"dtype": dtype, "precision": precision})
    if not plan.modules and not plan.parameters:
        problems = [f"`{path}` {why}" if path else why for path, why in plan.left.items()]
        raise ConversionError("No part of the model has a Flax twin.", problems, folded_sentences(problems))
    sentence, warn = training_sentence(plain.module)
    if sentence and warn:
        warnings.warn(sentence, stacklevel=2)
    result = Twins()
    result.report = report = new_report(plain.module, plain.unwrapped, plain.merged)
    report.left = plan.left
    for path, (module, twin) in plan.modules.items():
        part = new_report(module, {}, [name for name in plain.merged if name.startswith(f"{path}.")])
        result[path] = fill(twin, module, part)
        report.twins |= {under(path, name): under(path, ours) for name, ours in part.twins.items()}
        report.frozen += [under(path, name) for name in part.frozen]
        report.shared |= {under(path, name): under(path, stored) for name, stored in part.shared.items()}
        report.notes += part.notes
    for path, parameter in plan.parameters.items():
        kind = nnx.Param if parameter.requires_grad else FrozenParam
        result[path] = kind(_array(parameter))
        report.frozen += [] if parameter.requires_grad else [path]
    return result


def refusal_report(torch_model: Any) -> PortReport:
    """All that can't be taken over, in a model that from_torch refuses: `print` it; no weights are read.

    Args:
        torch_model: any torch.nn.Module.

    Returns:
        A PortReport whose `left` has a line for each submodule and tensor without a twin, "" for the model itself.
    """
    plain = unwrap(torch_model)
    report = new_report(plain.module, plain.unwrapped, [])
    plan = make_plan(plain, {})
    report.left = plan.left
    report.twins = dict.fromkeys(plan.modules, "")
    own = [text for text in refusals(plain.module) if text.startswith("the module ")]
    if own:
        report.left = {"": " ".join(own), **plan.left}
    return report


def _array(parameter: Any) -> jax.Array:
    return jnp.array(as_numpy(parameter), copy=True)


def make_plan(plain: Plain, options: dict[str, Any]) -> Plan:
    """Try every module from outside in; nothing is loaded."""
    plan = Plan()
    _collect(plain.module, "", options, plan, {})
    claimed: dict[Any, str] = {}
    by_embedding = sorted(plan.modules, key=lambda path: class_name(plan.modules[path][0]) != _EMBEDDING)
    for path in by_embedding:
        module, _ = plan.modules[path]
        tensors = {under(path, name): tensor for name, tensor in live_tensors(module).items()}
        tied = {name: claimed[same_tensor(t)] for name, t in tensors.items() if same_tensor(t) in claimed}
        claimed |= {same_tensor(tensor): name for name, tensor in tensors.items() if name not in tied}
        if tied:
            del plan.modules[path]
            own = {name: tensor for name, tensor in tensors.items() if name not in tied}
            plan.left[path] = _tied_sentence(plan, tied, list(own))
            plan.parameters |= own
    for name, tensor in list(plan.parameters.items()):
        other = claimed.setdefault(same_tensor(tensor), name)
        if other != name:
            del plan.parameters[name]
            plan.left[name] = f"is `{other}`: use that."
    return plan


def _tied_sentence(plan: Plan, tied: dict[str, str], own: list[str]) -> str:
    listed = ", ".join(f"`{name}` with `{stored}`" for name, stored in tied.items())
    owner = next(iter(tied.values())).rpartition(".")[0]
    embedding = owner in plan.modules and class_name(plan.modules[owner][0]) == _EMBEDDING
    way = f"call twins[{owner!r}].attend(x)" if embedding else "read that one"
    sentence = f"shares {listed}: {way}, and say so in `torch_ties()` of your class: {tied}."
    if own:
        keep = ", ".join(f"setattr(self, {name!r}, twins[{name!r}])" for name in own)
        read = " and ".join(f"getattr(self, {name!r})" for name in own)
        sentence += f" Keep what is its own under this very name, {keep}, and read it by {read}."
    return sentence


def _collect(module: Any, path: str, options: dict[str, Any], plan: Plan, seen: dict[int, str]) -> None:
    if id(module) in seen:
        plan.left[path] = f"is the same module as `{seen[id(module)]}`: call that one."
        return
    seen[id(module)] = path
    why = whole_refusal(module)
    if why:
        plan.left[path] = f"{why}."
        return
    reason = _own_forward(module, path, plan)
    if twin_of(module):
        try:
            plan.modules[path] = module, abstract_twin(module, options)
            return
        except (NotImplementedError, ConversionError) as error:
            reason = " ".join(line.strip(" -") for line in str(error).splitlines())
    _own_tensors(module, path, plan)
    children = {name: child for name, child in module._modules.items() if child is not None}
    if class_name(module) not in _CONTAINERS:
        if path and not children:
            plan.left[path] = f"has no twin ({class_name(module)})" if reason.startswith(_OWN_FORWARD) else reason
        elif path:
            plan.left[path] = reason
    for name, child in children.items():
        if name != "parametrizations":
            _collect(child, under(path, name), options, plan, seen)


def _own_forward(module: Any, path: str, plan: Plan) -> str:
    """What to do about a class whose forward nothing translates; said once for each class."""
    reason = f"{_OWN_FORWARD} ({class_name(module)})"
    first = next((name for name, why in plan.left.items() if why.startswith(reason)), None)
    if first is not None:
        return f"{reason}, as `{first}`."
    advice = f"write a Flax class for `{type(module).__name__}` with jaxattn.convert.twins(model.{attribute(path)})"
    several = path.rpartition(".")[2].isdigit()
    return f"{reason}: {advice}{', and hold them in nnx.List([...])' if several else ''}."


def _own_tensors(module: Any, path: str, plan: Plan) -> None:
    computed = reparametrised(module)
    for name, tensor in paths_of_tensors(module, path).items():
        problems = [text for text in [tensor_problem(tensor)] if text] or [
            text for text in dtype_problems(name, dtype_name(tensor), dtype_name(tensor)) if tensor.is_floating_point()
        ]
        if computed:
            plan.left[name] = f"belongs to a reparametrised tensor ({', '.join(computed)}): pass merge=True."
        elif problems:
            plan.left[name] = f"{problems[0]}."
        elif name.rpartition(".")[2] in module._parameters:
            plan.parameters[name] = tensor
        else:
            plan.left[name] = "is a buffer: make a constant of it, or compute it in your class."
