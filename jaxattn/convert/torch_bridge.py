"""Live PyTorch modules into their Flax twins, and weights back."""

import warnings
from typing import Any

import numpy as np

from .._checks import ConversionError, listed, shape_text
from .._tensors import tensor_problem
from .._tensors import to_torch as tensor_of
from .apply import LoadReport, state_dict
from .build import (
    abstract_twin,
    fill,
    further_names,
    live_tensors,
    new_report,
    shared_groups,
    training_sentence,
    twin_for,
)
from .folding import folded, folded_sentences, left_out
from .layout import same_bits
from .parts import make_plan
from .port import port_report
from .problems import check_module, dtype_name
from .refuse import refusals, whole_refusal
from .registry import class_name, near_classes, twin_of
from .unwrap import Plain, reparametrised, unwrap


def from_torch(torch_module: Any, *, dtype: Any = None, precision: Any = None, merge: bool = False) -> Any:
    """The Flax twin of a live PyTorch module, with its configuration and its weights.

    Matched on the exact type: a subclass may compute something else. Wrappers (DataParallel, torch.compile, …) come
    off. Parameters keep their dtype; frozen ones are `layers.FrozenParam`; shared ones are stored once. `.training` is
    not carried over: dropout is a matter of each call (`deterministic=False`), and a module that trains with dropout
    gets a warning that says so. `jaxattn.convert.port_report(twin)` tells what was done.

    Args:
        torch_module: a module of torchref, one of torch.nn's attention and transformer classes or basic layers,
            nn.Sequential of such, transformers' BertModel, or a class that was registered.
        dtype: of the twin's computation; None promotes inputs and parameters.
        precision: of the twin's matrix products.
        merge: take the effective weight where it is computed (weight_norm, parametrizations, pruning); one-way.

    Raises:
        TypeError: no PyTorch module.
        NotImplementedError: no twin is registered for this class (the message lists the parts that have one, for
            `jaxattn.convert.twins`), or something about the module can't be read off it: hooks, a patched forward, ….
        ConversionError: weights that can't be taken over (meta tensors, float64 with 64-bit types off, …).
    """
    plain = unwrap(torch_module, merge=merge)
    options = {"dtype": dtype, "precision": precision}
    if twin_of(plain.module) is None and whole_refusal(plain.module) is None:
        raise NotImplementedError(_without_twin(plain, options))
    twin = abstract_twin(plain.module, options)
    sentence, warn = training_sentence(plain.module)
    if sentence and warn:
        warnings.warn(sentence, stacklevel=2)
    return fill(twin, plain.module, new_report(plain.module, plain.unwrapped, plain.merged))


def to_torch(flax_module: Any, torch_module: Any) -> LoadReport:
    """Load a Flax module's weights back into a live PyTorch module, in place, bit for bit; all or nothing.

    Args:
        flax_module: what from_torch made, or a module whose parts are named as PyTorch's.
        torch_module: the module, its wrappers included.

    Returns:
        A LoadReport; buffers that the Flax module doesn't hold are `missing` in it, and stay. A name that Flax lacks
        but that is one tensor with another in PyTorch is in `tied`.

    Raises:
        ConversionError: tensors that don't fit, each in a sentence.
        NotImplementedError: the weights were merged, or those of the PyTorch module are computed from others.
    """
    check_module(flax_module)
    plain = unwrap(torch_module)
    report = port_report(flax_module)
    computed = [path for path, part in plain.module.named_modules() if reparametrised(part)]
    if computed or (report and report.merged):
        names = computed or (report.merged if report else [])
        raise NotImplementedError(
            f"`to_torch` can't give back effective weights ({', '.join(names)}): taking them was one-way. Remove the "
            "reparametrisation from the PyTorch module, port it, and load into that."
        )
    ours, theirs = state_dict(flax_module), live_tensors(plain.module)
    parameters = dict(plain.module.named_parameters(remove_duplicate=False))
    groups = {name: names for names in shared_groups(theirs) for name in names}
    missing = [name for name in theirs if not set(groups.get(name, [name])) & set(ours)]
    problems = [f"`{name}` is in PyTorch only" for name in missing if name in parameters]
    problems += [f"`{name}` is in Flax only" for name in ours if name not in theirs]
    problems += [
        f"`{name}` {text}" for name, tensor in theirs.items() if name in ours and (text := _unlike(ours[name], tensor))
    ]
    for names in shared_groups(theirs):
        first, *others = [name for name in names if name in ours] or names
        problems += [
            f"`{first}` and `{name}` are one tensor in PyTorch, and differ in Flax: decide for one"
            for name in others
            if not same_bits(ours[first], ours[name])
        ]
    if problems:
        kind = type(plain.module).__name__
        raise ConversionError(
            f"The weights do not fit {kind}; nothing was loaded. Problems: {len(problems)}.", problems
        )
    _copy({theirs[name]: tensor_of(array) for name, array in ours.items()})
    return LoadReport(loaded=len(ours), missing=missing, tied=further_names(theirs, ours))


def _unlike(array: np.ndarray, tensor: Any) -> str | None:
    if tensor_problem(tensor):
        return tensor_problem(tensor)
    if array.shape != tuple(tensor.shape):
        return f"is {shape_text(array.shape)} in Flax, {shape_text(tensor.shape)} in PyTorch"
    if array.dtype.name != dtype_name(tensor):
        return f"is {array.dtype.name} in Flax, {dtype_name(tensor)} in PyTorch: cast one of them"
    return None


def _copy(values: dict[Any, Any]) -> None:
    import torch

    with torch.no_grad():
        for tensor, value in values.items():
            tensor.copy_(value)


def _without_twin(plain: Plain, options: dict[str, Any]) -> str:
    """Why this class can't be converted by itself, and what of it can."""
    try:
        twin_for(plain.module)
        reason = ""
    except NotImplementedError as error:
        reason = str(error)
    plan = make_plan(plain, options)
    if not plan.modules:
        lines = [
            f"`from_torch` has {reason}{near_classes(class_name(plain.module))}.",
            *folded_sentences(refusals(plain.module)),
            "Classes that have one: print(jaxattn.convert.known_classes()).",
            "Next: add a twin with jaxattn.convert.register, or build the Flax module and use load_state_dict.",
        ]
        return "\n".join(lines)
    parts = folded((path, f"({type(module).__name__})") for path, (module, _) in plan.modules.items())
    lines = [
        f"`from_torch` has {reason}: a forward of its own can't be translated by reading its modules.",
        f"Next: write a Flax class for `{type(plain.module).__name__}`, of which only `__call__` is your work:",
        "jaxattn.convert.twins(model) makes these parts with their weights, to be held under these names:",
        *parts,
    ]
    if left_out(parts):
        lines.append("All of their names: print(*jaxattn.convert.twins(model)).")
    if plan.parameters:
        names = listed([f"`{name}`" for name in plan.parameters], 12)
        lines.append(f"Parameters of its own, given with them: {names}.")
    if plan.left:
        lines += ["These have none:", *folded(plan.left.items())]
        lines.append("All of it: print(jaxattn.convert.twins(model).report).")
    return "\n".join(lines)
