"""One live PyTorch module, without wrappers, into its Flax twin: what it is made of, its weights, what stays shared."""

import re
from collections.abc import Container, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import ConversionError
from .._tensors import tensor_problem
from ..layers import FrozenParam
from . import library_layers as library_layers  # registers its twins
from . import torch_activations as torch_activations
from .apply import load_state_dict
from .folding import folded_sentences
from .naming import Naming, under
from .port import PortReport, keep_report
from .problems import dtype_name, dtype_problems
from .refuse import RECURRENT, recurrent_advice, refusals
from .registry import Twin, base_names, class_name, twin_named, twin_of

#: Class → the attribute that holds its dropout rate.
_RATES = {"torch.nn.modules.dropout.Dropout": "p", "torch.nn.modules.activation.MultiheadAttention": "dropout"}
BATCH_NORMS = frozenset(f"torch.nn.modules.batchnorm.BatchNorm{axes}d" for axes in (1, 2, 3))
_ADVICE = (
    ". jaxattn.convert.twins(model) gives the parts that have one; jaxattn.convert.register adds a twin for a class."
)


class _SameKey(nnx.Rngs):
    """Randomness for initial values that are never computed: counting keys would cost most of the time."""

    def __init__(self):
        super().__init__(0)
        self.params = lambda: jax.random.key(0)


class _Builder:
    """`build(child)` of the configurations; one PyTorch module gives one Flax module, however often it is met."""

    def __init__(self, root: Any, options: dict[str, Any]):
        self.paths = {id(module): path for path, module in root.named_modules()}
        self.options = {**options, "rngs": _SameKey()}
        self.made: dict[int, Any] = {}

    def __call__(self, module: Any) -> Any:
        if id(module) not in self.made:
            path = self.paths.get(id(module))
            try:
                self.made[id(module)] = self._make(module)
            except (NotImplementedError, ValueError) as error:
                named = re.match(r"`[\w.]+`: ", str(error))  # an inner module has said where it is
                if named or not path:
                    raise
                advice = _ADVICE if "no Flax twin" in str(error) else ""
                raise NotImplementedError(f"`{path}`: {error}{advice}") from error
        return self.made[id(module)]

    def _make(self, module: Any) -> Any:
        twin = twin_for(module)
        arguments = twin.configuration(module, self)
        ours = {**self.options, "param_dtype": _param_dtype(module)}
        return twin.factory(**arguments, **{name: value for name, value in ours.items() if name in twin.options})


def twin_for(module: Any) -> Twin:
    """What is registered for exactly this class.

    Raises:
        NotImplementedError: nothing is.
    """
    name = class_name(module)
    twin = twin_of(module)
    if twin is None and name in RECURRENT:
        raise NotImplementedError(f"no Flax twin for {name}: {recurrent_advice(name)}")
    if twin is None:
        bases = base_names(type(module))[1:]
        known = next((base for base in bases if twin_named(base)), None)
        raise NotImplementedError(
            f"no Flax twin for {name}" + (f", which may compute something else than {known}" if known else "")
        )
    return twin


def abstract_twin(module: Any, options: dict[str, Any]) -> Any:
    """The Flax twin without weights.

    Raises:
        NotImplementedError: a class without a twin, or something that can't be read off the module.
        ConversionError: weights that can't be taken over, or that are shared in a way that the twin doesn't know.
    """
    problems = refusals(module)
    if problems:
        raise NotImplementedError("\n".join(["The module can't be taken over:", *folded_sentences(problems)]))
    tensors = live_tensors(module)
    problems = [f"`{name}` {tensor_problem(tensor)}" for name, tensor in tensors.items() if tensor_problem(tensor)]
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            problems += dtype_problems(name, dtype_name(tensor), dtype_name(tensor))
    if problems:
        shown = folded_sentences(problems)
        raise ConversionError("The module holds tensors that can't be taken over.", problems, shown)
    twin = nnx.eval_shape(lambda: _Builder(module, options)(module))
    problems = list(_tie_problems(tensors, Naming(twin)))
    if problems:
        shown = folded_sentences(problems)
        raise ConversionError("The module shares tensors in a way that its Flax twin doesn't.", problems, shown)
    return twin


def fill(twin: Any, module: Any, report: PortReport) -> Any:
    """Give an abstract twin the module's weights, and write down how they went."""
    tensors = live_tensors(module)
    if tensors:
        load_state_dict(twin, tensors)
    naming = Naming(twin)
    _freeze(twin, tensors, naming, report)
    there = [path for path, _ in module.named_modules(remove_duplicate=False)]
    pairs: dict[str, str] = {}
    for theirs, ours in naming.pairs():
        pairs.setdefault(theirs, ours)
    report.twins = {path: pairs[path] for path in there if path in pairs}
    report.shared = {name: stored for name, stored in naming.ties().items() if name in tensors}
    report.notes += list(_notes(module))
    keep_report(twin, report)
    return twin


def _notes(module: Any) -> Iterator[str]:
    for path, part in module.named_modules():
        if class_name(part) == "torch.nn.modules.sparse.Embedding" and part.sparse:
            yield f"`{path}` has sparse=True: its gradient is dense here"
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"`{path}` has backward hooks: gradients here don't pass them"


def live_tensors(module: Any) -> dict[str, Any]:
    """The parameters and buffers that a state dict names, themselves: hooks may give a state dict other values."""
    passing = {
        under(path, name)
        for path, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }
    buffers = {name: value for name, value in module.named_buffers(remove_duplicate=False) if name not in passing}
    return {**dict(module.named_parameters(remove_duplicate=False)), **buffers}


def same_tensor(tensor: Any) -> Any:
    """A key that two names of one tensor share."""
    if tensor.is_meta or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def shared_groups(tensors: dict[str, Any]) -> list[list[str]]:
    """The names of each tensor that has several."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(same_tensor(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def further_names(tensors: dict[str, Any], held: Container[str]) -> dict[str, str]:
    """Names that are not held → a name of the same tensor that is."""
    groups = [(names, next((name for name in names if name in held), None)) for names in shared_groups(tensors)]
    return {name: stored for names, stored in groups if stored is not None for name in names if name not in held}


def _tie_problems(tensors: dict[str, Any], naming: Naming) -> Iterator[str]:
    ties = naming.ties()
    read = {source for rule in naming.rules() for source in rule.sources} | set(ties)
    for names in shared_groups(tensors):
        first = next((name for name in names if name in read), None)
        yield from (
            f"`{first}` and `{name}` are one tensor in PyTorch and would be two in Flax, which training pulls apart: "
            "untie them (a clone), or port the parts by jaxattn.convert.twins and read the one through the other "
            "(`embed.attend`)."
            for name in names
            if first is not None and ties.get(name, name) != ties.get(first, first)
        )


def _freeze(twin: Any, tensors: dict[str, Any], naming: Naming, report: PortReport) -> None:
    frozen = {name for name, tensor in tensors.items() if tensor.is_floating_point() and _is_frozen(tensor)}
    for rule in naming.rules():
        if rule.sources and set(rule.sources) <= frozen:
            *path, last = rule.target.split(".")
            owner = twin
            for part in path:
                owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
            setattr(owner, last, FrozenParam(getattr(owner, last).get_value()))
            report.frozen += rule.sources
        elif set(rule.sources) & frozen:
            report.notes.append(f"`{rule.target}` is trained, although some of {', '.join(rule.sources)} were frozen")


def _is_frozen(tensor: Any) -> bool:
    return any(base.__name__ == "Parameter" for base in type(tensor).__mro__) and not tensor.requires_grad


def training_sentence(torch_module: Any) -> tuple[str | None, bool]:
    """What its training mode means for a twin, and whether that is worth a warning: there is dropout or batch norm."""
    kind, parts = type(torch_module).__name__, list(torch_module.modules())
    drops = [p for p in parts if p.training and class_name(p) in _RATES and getattr(p, _RATES[class_name(p)])]
    norms = [part for part in parts if class_name(part) in BATCH_NORMS]
    tracking = [part for part in norms if part.training and part.track_running_stats]
    if drops or tracking:
        what = " and ".join(["dropout"] * bool(drops) + ["batch norm"] * bool(tracking))
        does = ["applies dropout"] * bool(drops) + ["computes with and updates the batch's statistics"] * bool(tracking)
        rngs = " and rngs=nnx.Rngs(dropout=seed)" if drops else ""
        mixed = tracking and any(part.track_running_stats and not part.training for part in norms)
        unlike = " Some batch norms in it are in evaluation mode: deterministic=False is for all of them."
        return (
            f"{kind} is in training mode with {what}; its Flax twin {' and '.join(does)} only when "
            f"called with deterministic=False{rngs}. Call .eval() first to say so yourself." + (unlike if mixed else "")
        ), True
    if torch_module.training:
        return f"{kind} was in training mode, which changes nothing: no dropout is active in it.", False
    return None, False


def _param_dtype(module: Any) -> Any:
    tensors = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    return jnp.dtype(str(tensors[0].dtype).removeprefix("torch.")) if tensors else jnp.float32


def new_report(module: Any, unwrapped: dict[str, str], merged: list[str]) -> PortReport:
    return PortReport(class_name(module), unwrapped=unwrapped, merged=merged, training=training_sentence(module)[0])


def paths_of_tensors(module: Any, path: str) -> dict[str, Any]:
    """A module's own tensors by their path in the whole."""
    own = {**module._parameters, **module._buffers}
    return {under(path, name): tensor for name, tensor in own.items() if tensor is not None}
