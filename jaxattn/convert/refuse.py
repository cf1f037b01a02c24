"""What about a live PyTorch module can't be read off it: one sentence each, with what to do."""

from collections.abc import Iterator
from typing import Any

from .naming import under
from .registry import base_names, class_name, hook_names
from .unwrap import old_hook, reparametrised

#: Classes whose forward is a recurrence over time, and what of one is in the rows of its weights.
RECURRENT = {
    f"torch.nn.modules.rnn.{name}": gates
    for names, gates in (
        (("LSTM", "LSTMCell"), "the gates input, forget, cell, output, in this order"),
        (("GRU", "GRUCell"), "the gates reset, update, new, in this order"),
        (("RNN", "RNNCell"), "those of the one nonlinearity"),
    )
    for name in names
}


def recurrent_advice(name: str) -> str:
    """What to do about a recurrent class."""
    kind = name.rpartition(".")[2]
    return (
        "it is a recurrence over time, which this package doesn't port. Write it as a jax.lax.scan over time (flax.nnx "
        f"has nnx.RNN and cells for it) that holds {kind}'s parameters under PyTorch's names: the rows of weight_ih "
        f"and weight_hh are {RECURRENT[name]}, and both biases are added. Port the rest with jaxattn.convert.twins, "
        "then check with jaxattn.parity.compare"
    )


_QUANTISED = ("torch.ao.nn.", "torch.nn.quantized.", "torch.nn.qat.", "torch.nn.intrinsic.", "torchao.")


def refusals(torch_module: Any) -> list[str]:
    """Sentences, by path, about the module and everything in it; the insides of what is refused whole are skipped."""
    return [sentence for path, module in _walk(torch_module, "", set()) for sentence in _about(module, path)]


def whole_refusal(module: Any) -> str | None:
    """Why nothing about this module, its insides included, can be read, or None."""
    bases = base_names(type(module))
    if any(base in ("torch.jit._script.ScriptModule", "torch.jit._trace.TopLevelTracedModule") for base in bases):
        return "is a ScriptModule, whose code is compiled: convert the Python module that it was made from"
    if any(base == "torch.nn.modules.lazy.LazyModuleMixin" for base in bases) and module.has_uninitialized_params():
        return "is a lazy module without weights yet: call the model once on an example, then convert"
    if class_name(module).startswith(_QUANTISED):
        return f"is quantised ({type(module).__name__}): convert the floating-point model, before quantisation"
    return None


def _walk(module: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    if whole_refusal(module) is None:
        for name, child in module._modules.items():
            if child is not None and name != "parametrizations":
                yield from _walk(child, under(path, name), seen)


def _about(module: Any, path: str) -> Iterator[str]:
    where = f"`{path}`" if path else "the module"
    whole = whole_refusal(module)
    if whole:
        yield f"{where} {whole}."
        return
    for name, by in reparametrised(module).items():
        yield (
            f"{where} computes `{name}` by {by}: pass merge=True to take the effective weight (one-way: it can't be "
            "loaded back), or remove the reparametrisation first."
        )
    pre = [hook for hook in module._forward_pre_hooks.values() if not old_hook(hook)]
    for kind, hooks in (("forward hook", module._forward_hooks.values()), ("forward pre-hook", pre)):
        if hooks:
            yield (
                f"{where} has a {kind} ({hook_names(hooks)}), whose effect can't be read: remove it "
                "(handle.remove()), and put what it computes into the Flax code."
            )
    for name in vars(module):
        if callable(vars(module)[name]) and callable(getattr(type(module), name, None)):
            yield (
                f"{where} has a `{name}` of its own, set on the instance, which can't be translated: delete it, or "
                "make it a class and register a twin (jaxattn.convert.register)."
            )
    if class_name(module) == "torch.nn.modules.sparse.Embedding":
        yield from _about_embedding(module, where)


def _about_embedding(module: Any, where: str) -> Iterator[str]:
    if module.max_norm is not None:
        yield (
            f"{where} is an Embedding with max_norm={module.max_norm}, which rewrites its weight in each forward pass: "
            "renormalise the weight once and set max_norm=None."
        )
    if module.scale_grad_by_freq:
        yield (
            f"{where} is an Embedding with scale_grad_by_freq=True, which no gradient of JAX has: set it to False, or "
            "scale the gradients in the optimizer."
        )
