"""torch.nn.Sequential: modules one after the other, a repeated one stored once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from .._typing import ArrayLike
from .dropping import Dropping


def distinct(modules: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The different objects among `modules`, and for each place which of them is there.

    One NNX module under two attributes comes apart under jax.jit and jax.grad, so containers hold each once.
    """
    kept: list[Any] = []
    places: dict[int, int] = {}
    for module in modules:
        if id(module) not in places:
            places[id(module)] = len(kept)
            kept.append(module)
    return kept, tuple(places[id(module)] for module in modules)


def repeated_names(order: Sequence[int], names: Sequence[str], attribute: str) -> dict[str, tuple[str, ...]]:
    """What `torch_names` of a container says: "layers.0" ↔ the names under which PyTorch has that module."""
    return {
        f"{attribute}.{index}": tuple(name for place, name in zip(order, names, strict=True) if place == index)
        for index in sorted(set(order))
    }


@dataclass(frozen=True)
class Attend:
    """A place of a Sequential where a linear layer has the weight of the embedding at another place."""

    embedding: int


class Sequential(nnx.Module):
    """layers[-1](… layers[0](inputs)).

    Args:
        layers: modules, of which some may be the same object, and `Attend` for a layer that is tied to an embedding.
        names: PyTorch's names of the places; "0", "1", … by default.
    """

    def __init__(self, layers: Sequence[nnx.Module | Attend], names: Sequence[str] | None = None):
        names = [str(place) for place in range(len(layers))] if names is None else names
        owners = [layers[layer.embedding] if isinstance(layer, Attend) else layer for layer in layers]
        kept, self.order = distinct(owners)
        self.layers = nnx.List(kept)
        self.names = tuple(names)
        self.attends = tuple(layer.embedding if isinstance(layer, Attend) else None for layer in layers)

    def __call__(
        self,
        inputs: Any,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        dropout_masks: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """inputs, as the first layer takes them → what the last one gives.

        Args:
            inputs: of the first layer.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what no mask is given for.
            dropout_masks: keep masks by the path of their dropout, "3" or "0.dropout1".

        Raises:
            ValueError: a keep mask for no layer; what the layers raise.
        """
        dropping = Dropping(deterministic, rngs, dropout_masks)
        dropping.check(*self.names)
        x = inputs
        for name, place, embedding in zip(self.names, self.order, self.attends, strict=True):
            layer: Any = self.layers[place]
            x = dropping.apply(name, layer, x) if embedding is None else layer.attend(x)
        return x

    def torch_names(self) -> dict[str, tuple[str, ...]]:
        called = [(p, n) for p, n, e in zip(self.order, self.names, self.attends, strict=True) if e is None]
        return repeated_names([place for place, _ in called], [name for _, name in called], "layers")

    def torch_ties(self) -> dict[str, str]:
        return {
            f"{name}.weight": f"{self.names[embedding]}.weight"
            for name, embedding in zip(self.names, self.attends, strict=True)
            if embedding is not None
        }
