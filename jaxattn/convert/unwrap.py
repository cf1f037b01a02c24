"""A live PyTorch module without its wrappers, and with reparametrised weights as plain ones."""

from dataclasses import dataclass, field
from typing import Any

from .naming import under
from .registry import base_names, class_name, hook_names
from .torch_copy import structural_copy

#: Class → the attribute that holds the module it wraps.
WRAPPERS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper": "_checkpoint_wrapped_module",
    "torch.optim.swa_utils.AveragedModel": "module",
}
_MODULE = "torch.nn.modules.module.Module"
_OLD_HOOKS = {
    "torch.nn.utils.weight_norm.WeightNorm": "weight_norm",
    "torch.nn.utils.spectral_norm.SpectralNorm": "spectral_norm",
    "torch.nn.utils.prune.BasePruningMethod": "pruning",
}


@dataclass
class Plain:
    """`module` shares its parameters with the original; it is the original itself where nothing had to be taken off.

    Attributes:
        module: without wrappers, and with `merge` without reparametrisations.
        unwrapped: path → class of each wrapper.
        merged: names of the tensors whose effective value was taken.
    """

    module: Any
    unwrapped: dict[str, str] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)


def unwrap(torch_module: Any, *, merge: bool = False) -> Plain:
    """Take off every wrapper, at the root and inside; with `merge` also put effective weights in place.

    The module itself is not changed: what has to differ is a shallow copy.

    Raises:
        TypeError: no PyTorch module.
        NotImplementedError: a wrapper with hooks, which would be lost.
    """
    if _MODULE not in base_names(type(torch_module)):
        raise TypeError(
            f"`torch_module` must be a live torch.nn.Module, got {type(torch_module).__name__}; "
            "weights alone go into a Flax module by jaxattn.load_state_dict."
        )
    plain = Plain(torch_module)
    plain.module = _plain(torch_module, "", merge, plain, {})
    return plain


def reparametrised(module: Any) -> dict[str, str]:
    """Which tensors of this module itself are computed from others, and by what: {"weight": "weight_norm"}."""
    found = {}
    for name, chain in dict(getattr(module, "parametrizations", {})).items():
        found[name] = " and ".join(type(step).__name__ for step in chain)
    return found | {_tensor_of(hook): kind for hook in module._forward_pre_hooks.values() if (kind := old_hook(hook))}


def old_hook(hook: Any) -> str | None:
    """What kind of reparametrisation by a pre-hook this is, or None."""
    names = base_names(type(hook))
    return next((_OLD_HOOKS[name] for name in names if name in _OLD_HOOKS), None)


def _tensor_of(hook: Any) -> str:
    return hook._tensor_name if old_hook(hook) == "pruning" else hook.name


def _plain(module: Any, path: str, merge: bool, plain: Plain, seen: dict[int, Any]) -> Any:
    if id(module) in seen:
        return seen[id(module)]
    name = class_name(module)
    if name in WRAPPERS:
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if hooks:
            raise NotImplementedError(
                f"The wrapper `{path or name}` has forward hooks ({hook_names(hooks)}), whose effect can't be read: "
                "remove them (handle.remove()), and put what they compute into the Flax code."
            )
        kind, outer = name.rpartition(".")[2], plain.unwrapped.get(path)
        plain.unwrapped[path] = f"{outer} of {kind}" if outer else kind
        inner = _plain(getattr(module, WRAPPERS[name]), path, merge, plain, seen)
        seen[id(module)] = inner
        return inner
    seen[id(module)] = module
    merges = reparametrised(module) if merge else {}
    children = {
        name: child if child is None else _plain(child, under(path, name), merge, plain, seen)
        for name, child in module._modules.items()
        if not (merges and name == "parametrizations")
    }
    if not merges and all(child is module._modules[name] for name, child in children.items()):
        return module
    replica = _shallow_copy(module, children)
    if merges:
        _merge(module, replica, merges)
        plain.merged += [under(path, name) for name in merges]
    seen[id(module)] = replica
    return replica


def _shallow_copy(module: Any, children: dict[str, Any]) -> Any:
    """By hand: copy.copy is refused by parametrised modules."""
    replica = object.__new__(type(module))
    replica.__dict__.update({**vars(module), "_modules": children})
    return replica


def _merge(module: Any, replica: Any, merges: dict[str, str]) -> None:
    """Give `replica` the effective tensors of `module` as parameters, instead of what they are computed from."""
    import torch

    with torch.no_grad():
        copied = _evaluating(module)
        values = {name: _effective(copied, name).detach().clone() for name in merges}
    if type(module).__module__ == "torch.nn.utils.parametrize":
        replica.__class__ = type(module).__bases__[0]
    hooks = module._forward_pre_hooks
    sources = {f"{name}_{suffix}" for name in merges for suffix in ("g", "v", "orig", "mask", "u", "v")}
    replica.__dict__["_forward_pre_hooks"] = type(hooks)((k, hook) for k, hook in hooks.items() if not old_hook(hook))
    for store in ("_parameters", "_buffers"):
        kept = {name: value for name, value in getattr(module, store).items() if name not in sources}
        replica.__dict__[store] = kept
    for name, value in values.items():
        replica.__dict__.pop(name, None)
        trained = any(parameter.requires_grad for parameter in _sources(module, name))
        replica._parameters[name] = torch.nn.Parameter(value, requires_grad=trained)


def _sources(module: Any, name: str) -> list[Any]:
    if name in dict(getattr(module, "parametrizations", {})):
        return list(module.parametrizations[name].parameters())
    return [value for key, value in module._parameters.items() if key.startswith(f"{name}_") and value is not None]


def _effective(module: Any, name: str) -> Any:
    for hook in module._forward_pre_hooks.values():
        kind = old_hook(hook)
        if kind and _tensor_of(hook) == name:
            if kind == "pruning":
                return hook.apply_mask(module)
            return hook.compute_weight(module, False) if kind == "spectral_norm" else hook.compute_weight(module)
    return getattr(module, name)


def _evaluating(module: Any) -> Any:
    """A copy whose parametrisations don't change their buffers, as spectral norm's do in training mode."""
    copied = structural_copy(module)
    for chain in dict(getattr(copied, "parametrizations", {})).values():
        chain.eval()
    return copied
