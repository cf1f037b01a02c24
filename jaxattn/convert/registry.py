"""Which PyTorch class has which Flax twin, and how its configuration is read off a live module."""

import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

Factory = TypeVar("Factory", bound=Callable[..., Any])
#: (live torch module, build) → constructor arguments; `build(child)` is the twin of a child module.
Configuration = Callable[[Any, Callable[[Any], Any]], dict[str, Any]]

_TWINS: dict[str, "Twin"] = {}
_FAMILIES: dict[str, Callable[[type], "Twin | None"]] = {}
#: Constructor arguments that no PyTorch module knows.
FLAX_ONLY = frozenset({"dtype", "param_dtype", "precision", "rngs"})


@dataclass(frozen=True)
class Twin:
    """A Flax class (or factory), and the constructor arguments that make it equal to a live PyTorch module."""

    factory: Callable[..., Any]
    configuration: Configuration

    @property
    def options(self) -> frozenset[str]:
        """Which of the Flax-only arguments the factory takes."""
        return FLAX_ONLY & set(_argument_names(self.factory))


def _argument_names(factory: Callable[..., Any]) -> list[str]:
    # The signature of an NNX class is its metaclass's (*args, **kwargs).
    function = factory.__init__ if isinstance(factory, type) else factory
    return [name for name in inspect.signature(function).parameters if name != "self"]


def attributes_of(factory: Callable[..., Any]) -> Configuration:
    """Each constructor argument is the attribute of that name on the PyTorch module."""
    names = [name for name in _argument_names(factory) if name not in FLAX_ONLY]
    return lambda torch_module, build: {name: getattr(torch_module, name) for name in names}


def register(torch_class: str, *, configuration: Configuration | None = None) -> Callable[[Factory], Factory]:
    """Decorator: the decorated Flax class, or function that makes one, is the twin of `torch_class`.

    Args:
        torch_class: the full dotted name, matched on the exact type ("torch.nn.modules.activation.MultiheadAttention").
        configuration: (live torch module, build) → constructor arguments, where `build(child)` is a child's twin; by
            default the attributes named as the arguments.
    """

    def add(factory: Factory) -> Factory:
        _TWINS[torch_class] = Twin(factory, configuration or attributes_of(factory))
        return factory

    return add


def register_family(what: str, recognise: Callable[[type], Twin | None]) -> None:
    """Many classes of one formula: `recognise` gives the twin of a class that isn't registered by name, or None."""
    _FAMILIES[what] = recognise


def class_of(value: Any) -> type:
    """An object's exact class; of a parametrised module its original class."""
    kind = type(value)
    return kind.__bases__[0] if kind.__module__ == "torch.nn.utils.parametrize" else kind


def class_name(value: Any) -> str:
    """The full dotted name of an object's exact class; for a parametrised module that of its original class."""
    kind = class_of(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def base_names(kind: type) -> list[str]:
    """The full dotted names of a class and of all that it is made of."""
    return [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]


def hook_names(hooks: Iterable[Any]) -> str:
    """What PyTorch's hooks are called, for an error."""
    return ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)


def twin_named(torch_class: str) -> Twin | None:
    """The twin registered for exactly this class, given by its full dotted name."""
    return _TWINS.get(torch_class)


def twin_of(torch_module: Any) -> Twin | None:
    """The twin registered for a live module's exact class, by its name or as one of a family."""
    return twin_named(class_name(torch_module)) or _of_family(class_of(torch_module))


@cache
def _of_family(kind: type) -> Twin | None:
    """Read once a class: families look at its source."""
    return next((twin for recognise in _FAMILIES.values() if (twin := recognise(kind))), None)


def near_classes(name: str) -> str:
    """Registered classes with nearly the name of this one, as the end of a sentence; "" if there are none."""
    short = {known.rpartition(".")[2]: known for known in _TWINS}
    near = difflib.get_close_matches(name.rpartition(".")[2], list(short), n=3, cutoff=0.7)
    return (
        f"; of nearly this name there {'is' if len(near) == 1 else 'are'} {', '.join(short[n] for n in near)}"
        * bool(near)
    )


def known_classes() -> str:
    """The registered classes, a line for each package, and the families that are known by their formula."""
    packages: dict[str, list[str]] = {}
    for name in sorted(_TWINS):
        package = "torch.nn" if name.startswith("torch.nn.") else name.partition(".")[0]
        packages.setdefault(package, []).append(name.rpartition(".")[2])
    lines = [*(f"{package}: {', '.join(names)}" for package, names in packages.items()), *_FAMILIES]
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in lines)
