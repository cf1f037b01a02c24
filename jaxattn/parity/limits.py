"""What in a float64 run of a torch module is not float64, and what is not deterministic."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._checks import listed
from ..convert.build import BATCH_NORMS
from ..convert.registry import class_name
from .arguments import is_floating
from .criterion import OUTPUT_TOLERANCE, algorithm_verdict, output_scale
from .outputs import Flat


class Watch:
    """A context for one forward pass of a copy; afterwards it says what the pass did.

    If the pass drew from torch's own generator, that is put back.

    Args:
        original: the module that was copied.

    Attributes:
        narrowing: operations that made a float32 (or narrower) tensor of a float64 one: the result is none in float64.
        entering: operations that took a float32 tensor beside a float64 one: a constant, exact or rounded.
        random: operations that drew random numbers.
    """

    def __init__(self, original: Any) -> None:
        self.narrowing: Counter[str] = Counter()
        self.entering: Counter[str] = Counter()
        self.random: Counter[str] = Counter()
        self._mode = _dispatch_mode(self, _places(original))
        self._state: Any = None

    def __enter__(self) -> "Watch":
        import torch

        self._state = torch.get_rng_state()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        import torch

        self._mode.__exit__(*error)
        if self.random:
            torch.set_rng_state(self._state)


def _places(module: Any) -> dict[int, str]:
    """Where in memory each parameter and buffer lies, with its name."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {place: name for name, tensor in tensors if (place := _place(tensor))}


def _place(tensor: Any) -> int:
    """Where the memory of this tensor begins; 0 if it has none."""
    plain = str(tensor.layout) == "torch.strided" and not tensor.is_meta
    return tensor.untyped_storage().data_ptr() if plain else 0


def _dispatch_mode(watch: Watch, originals: Mapping[int, str]) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            operands = list(_floating_tensors((args, kwargs)))
            for name in (originals.get(_place(tensor)) for tensor in operands):
                if name is not None:
                    raise NotImplementedError(
                        f"The torch module must reach its parts through itself, got a forward that reaches `{name}` of "
                        "the original while a copy runs (through a global variable, or an object that can't be "
                        "copied): refer to it through `self`."
                    )
            # Before the call: an operation in place changes its operand.
            taken = [tensor.dtype for tensor in operands]
            result = func(*args, **(kwargs or {}))
            given = [tensor.dtype for tensor in _floating_tensors(result)]
            narrow = {dtype for dtype in (*taken, *given) if dtype != torch.float64}
            if torch.Tag.nondeterministic_seeded in func.tags and _dropout_rate(func, args, kwargs or {}) != 0.0:
                watch.random[str(func)] += 1
            if torch.float64 in taken and any(dtype != torch.float64 for dtype in given):
                watch.narrowing[str(func)] += 1
            elif torch.float64 in (*taken, *given) and narrow:
                watch.entering[str(func)] += 1
            return result

    return Mode()


def _dropout_rate(func: Any, args: Any, kwargs: Any) -> float | None:
    """What an attention kernel was given as `dropout_p`; None for operations without that argument."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return kwargs.get("dropout_p", args[place] if place < len(args) else argument.default_value)
    return None


def _floating_tensors(tree: Any) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            yield leaf


def certain_limits(torch_module: Any, watch: Watch) -> list[str]:
    """Why the float64 run is float32 in truth: narrowing operations, and an RMSNorm whose epsilon follows the dtype."""
    import torch

    norms = [
        f"nn.RMSNorm(eps=None) `{name}`"
        for name, module in torch_module.named_modules()
        if isinstance(module, torch.nn.RMSNorm) and module.eps is None
    ]
    return [*watch.narrowing, *norms]


def possible_limits(torch_module: Any, watch: Watch, shared: Iterable[str]) -> list[str]:
    """Constants that were rounded to float32 before: tensors that entered the run, and buffers that are no weights.

    Args:
        torch_module: the module.
        watch: of its float64 run.
        shared: names of the tensors that the Flax module holds too.
    """
    import torch

    shared = set(shared)
    buffers = [
        f"buffer `{name}` ({str(buffer.dtype).removeprefix('torch.')})"
        for name, buffer in torch_module.named_buffers()
        if name not in shared and buffer.is_floating_point() and buffer.dtype != torch.float64
    ]
    return [*(f"{name} (a constant of lower precision)" for name in watch.entering), *buffers]


def check_deterministic(torch_module: Any, watch: Watch, dropout: Any = None) -> None:
    """No operation drew random numbers.

    Raises:
        ValueError: dropout is active and not planned, or the module draws otherwise.
    """
    tracking = [
        f"`{name or type(module).__name__}`"
        for name, module in torch_module.named_modules()
        if module.training and class_name(module) in BATCH_NORMS and module.track_running_stats
    ]
    if tracking and dropout is None:
        raise ValueError(
            "Batch norm must be in evaluation mode for a comparison, or the comparison in training mode, got "
            f"{listed(tracking)} in training mode; call torch_module.eval() first, or pass "
            "dropout=jaxattn.parity.DropoutPlan(), which calls the Flax module with deterministic=False."
        )
    if not watch.random:
        return
    if dropout is not None:
        raise ValueError(
            f"A dropout plan covers nn.Dropout, nn.MultiheadAttention and torch.nn.functional's dropout and "
            f"scaled_dot_product_attention, got random numbers from {', '.join(watch.random)}; call one of those, or "
            "compare in evaluation mode."
        )
    active = [
        f"`{name or type(module).__name__}`"
        for name, module in torch_module.named_modules()
        if module.training and _drops(module)
    ]
    drawn = ", ".join(watch.random)
    if active:
        raise ValueError(
            f"Dropout must be off for a comparison, or planned, got the torch module in training mode with dropout "
            f"active in {listed(active)} ({drawn}); call torch_module.eval() first, or pass "
            "dropout=jaxattn.parity.DropoutPlan()."
        )
    raise ValueError(
        f"The torch module must be deterministic, got random numbers from {drawn}; "
        "call torch_module.eval() if that switches them off."
    )


def check_repeatable(first: Flat, second: Flat) -> None:
    """Two runs of one call gave the same: also finds randomness that isn't torch's.

    Raises:
        ValueError: they didn't.
    """
    for path, before, after in zip(first.paths, first.arrays, second.arrays, strict=True):
        scale = output_scale(before) if is_floating(before) else 0.0
        problem = algorithm_verdict(after, before, scale=scale, tolerance=OUTPUT_TOLERANCE).problem
        if problem is not None:
            raise ValueError(
                f"The torch module must be deterministic, got two float64 runs of one call that differ in "
                f"`{path or 'output'}` ({problem}); take its randomness out, or draw it from a fixed seed."
            )


def _drops(module: Any) -> bool:
    rates = (getattr(module, "p", None), getattr(module, "dropout", None))
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)
