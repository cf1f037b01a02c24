"""Which parameter of a Flax module belongs to which group of a torch optimizer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from .match import match_keys
from .naming import rules_of

#: Labels of parameters that no group updates: without a gradient, or with one that no group uses.
FROZEN, LEFT = "frozen", "left"


@dataclass(frozen=True)
class Groups:
    """Which parameter belongs to which group of a torch optimizer.

    Attributes:
        labels: Flax path → "0", "1", … of its group, "frozen" or "left".
        sources: Flax path → the torch parameters that make it, in the rule's order.
    """

    labels: dict[str, str]
    sources: dict[str, tuple[Any, ...]]

    def tree(self, params: Any) -> Any:
        """`labels` in the structure of `params`."""
        return jax.tree_util.tree_map_with_path(lambda path, _: self.labels[path_of(path)], params)

    def of_label(self, label: Any) -> list[Any]:
        """The torch parameters of this group."""
        return [one for target, ones in self.sources.items() if self.labels[target] == label for one in ones]


def groups_of(
    torch_optimizer: Any, torch_module: Any, flax_module: nnx.Module, *, unused: Iterable[str] = ()
) -> Groups:
    """The group of every parameter of the Flax module.

    Raises:
        ValueError: parameters that are not in the module, or groups that part what Flax holds as one parameter.
    """
    named = dict(torch_module.named_parameters(remove_duplicate=False))
    label_of = _labels(torch_optimizer, named, unused)
    rules = {rule.target: rule for rule in rules_of(flax_module)}
    params = nnx.state(flax_module, nnx.Param)
    trained = [path_of(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    keys = match_keys(named, [source for rule in rules.values() for source in rule.sources])
    reached, labels, sources = set(), {}, {}
    for target in trained:
        rule = rules[target]
        found = [keys.source_of[source] for source in rule.sources if source in keys.source_of]
        reached |= {id(named[name]) for name in found}
        if len(found) < len(rule.sources):
            wanted, got = ", ".join(rule.sources), ", ".join(found) or "none"
            raise ValueError(f"The Flax parameter `{target}` must have torch's {wanted}, got {got}.")
        given = {name: label_of[id(named[name])] for name in found}
        if len(set(given.values())) > 1:
            listed = ", ".join(f"`{name}`: {label}" for name, label in given.items())
            raise ValueError(
                f"Tensors that Flax holds as one parameter must be in one group, got {listed} for `{target}`."
            )
        labels[target] = next(iter(given.values()))
        sources[target] = tuple(named[name] for name in found)
    lost = [name for name, value in named.items() if id(value) not in reached and label_of[id(value)].isdigit()]
    if lost:
        listed = ", ".join(lost)
        raise ValueError(
            f"Every optimised tensor must have a Flax parameter that trains (nnx.Param), got none for {listed}."
        )
    return Groups(labels, sources)


def _labels(torch_optimizer: Any, named: Mapping[str, Any], unused: Iterable[str]) -> dict[int, str]:
    """id of a torch parameter → its label."""
    known, skipped = {id(parameter) for parameter in named.values()}, set(unused)
    wrong = skipped - set(named)
    if wrong:
        raise ValueError(f"`unused` must be names of torch's parameters, got {', '.join(sorted(wrong))}.")
    state = torch_optimizer.state
    stateful = any(state.values())
    labels = {id(value): LEFT if value.requires_grad else FROZEN for value in named.values()}
    skipped_ids = {id(named[name]) for name in skipped}
    for index, parameter in _grouped(torch_optimizer):
        if id(parameter) not in known:
            raise ValueError(
                f"The optimizer's parameters must be those of `torch_module`, got one of shape "
                f"{tuple(parameter.shape)} in group {index} that is not."
            )
        if not parameter.requires_grad or id(parameter) in skipped_ids or (stateful and not state.get(parameter)):
            labels[id(parameter)] = FROZEN
        else:
            labels[id(parameter)] = str(index)
    return labels


def _grouped(torch_optimizer: Any) -> Iterator[tuple[int, Any]]:
    for index, group in enumerate(torch_optimizer.param_groups):
        for parameter in group["params"]:
            yield index, parameter


def path_of(path: tuple[Any, ...]) -> str:
    """The dotted path of a parameter from JAX's key path, which may end in a step into the nnx.Variable."""
    return ".".join(str(part.key) for part in path if isinstance(part, jax.tree_util.DictKey))
