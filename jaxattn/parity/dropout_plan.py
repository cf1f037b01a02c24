"""Dropout that is the same on both sides: keep masks drawn by site, put into torch and handed to Flax."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from flax import nnx

from ..convert.naming import attribute


@dataclass(frozen=True)
class DropoutPlan:
    """Training mode made deterministic: each dropout keeps what a keep mask says, on both sides.

    Masks are drawn by NumPy from [seed, step, index of the site's call]. A site is an nn.Dropout, an
    nn.MultiheadAttention (its weights), or a module that calls torch.nn.functional's dropout or
    scaled_dot_product_attention itself; its name is its path in the torch module.

    Attributes:
        seed: of the masks.
        step: of a training run.
    """

    seed: int = 0
    step: int = 0

    @contextmanager
    def on_torch(self, torch_copy: Any) -> Iterator[dict[str, np.ndarray]]:
        """Within, in this thread, a copy trains with planned dropout; the masks used so far, by their site.

        Attention weights have their mask as [*B, N, T, S], other sites in the layout of the tensor they multiply.

        Raises:
            NotImplementedError: a site that drops twice in one call of the module.
        """
        sites = _Sites(self)
        modes = [(module, module.training) for module in torch_copy.modules()]
        handles = [handle for name, module in torch_copy.named_modules() for handle in sites.watch(name, module)]
        try:
            torch_copy.train()
            with _function_mode(sites):
                yield sites.masks
        finally:
            for handle in handles:
                handle.remove()
            for module, mode in modes:
                module.training = mode


def check_plan(dropout: Any) -> None:
    """A plan or None.

    Raises:
        TypeError: a rate, a seed or anything else.
    """
    if dropout is not None and not isinstance(dropout, DropoutPlan):
        raise TypeError(f"`dropout` must be a parity.DropoutPlan (its seed is an argument of it), got {dropout!r}.")


def dropout_arguments(flax_module: nnx.Module, masks: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments with which a Flax module drops what `masks` don't keep.

    Raises:
        TypeError: the module takes no keep masks, or not those of its parts.
    """
    taken = inspect.signature(type(flax_module).__call__).parameters
    arguments: dict[str, Any] = {"deterministic": False} if "deterministic" in taken else {}
    if "dropout_masks" in taken:
        return {**arguments, "dropout_masks": dict(masks)}
    single = next((name for name in ("dropout_mask", "keep_mask") if name in taken), None)
    inner = [path for path in masks if path or single is None]
    if inner:
        listed = ", ".join(f"`{path}`" for path in inner)
        raise TypeError(
            f"{type(flax_module).__name__} must take `deterministic` and `dropout_masks` (keep masks by their torch "
            f"paths) to be compared in training mode, got none for the dropout of torch at {listed}. Write:\n"
            f"{_passing_on(inner)}"
        )
    return arguments if single is None else {**arguments, single: masks.get("")}


def _passing_on(sites: Iterable[str]) -> str:
    """A `__call__` that gives keep masks to its parts."""
    lines = [
        "def __call__(self, x, *, deterministic=True, rngs=None, dropout_masks=None):",
        "    dropping = jaxattn.layers.Dropping(deterministic, rngs, dropout_masks)",
    ]
    parts = dict.fromkeys(re.sub(r"^([^.]+(\.\d+)*).*", r"\1", site) for site in sites if site)
    for part in list(parts)[:3]:
        lines.append(f'    … self.{attribute(part)}(…, **dropping.options("{part}", self.{attribute(part)})) …')
    if "" in sites:
        lines.append(
            '    … jaxattn.layers.Dropout(rate)(…, deterministic=deterministic, keep_mask=dropping.mask("")) …'
        )
    return "\n".join(lines)


def _function_mode(sites: "_Sites") -> Any:
    """Calls of torch's functions that drop, in this thread, go to `sites`."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    # torch's attention calls both where no mode looks: the same code, on names of its own.
    attention = functional.multi_head_attention_forward
    names = {"dropout": sites.dropout, "scaled_dot_product_attention": sites.attention}
    names["has_torch_function"] = lambda tensors: False
    planned = {
        functional.dropout: sites.dropout,
        functional.scaled_dot_product_attention: sites.attention,
        attention: _with_globals(attention, names),
    }

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            return planned.get(func, func)(*args, **(kwargs or {}))

    return Mode()


def _with_globals(function: Any, names: Mapping[str, Any]) -> Any:
    """A function with the same code, for which these global names stand for something else."""
    missing = set(names) - set(function.__code__.co_names)
    if missing:
        raise NotImplementedError(
            f"A dropout plan must know how {function.__name__} drops, got a version of torch in which it doesn't call "
            f"{', '.join(sorted(missing))}; compare in evaluation mode."
        )
    made = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


class _Sites:
    """Which module is running, and the masks that were drawn."""

    def __init__(self, plan: DropoutPlan):
        self.masks: dict[str, np.ndarray] = {}
        self._plan = plan
        self._running: list[tuple[str, Any, bool]] = []

    def watch(self, name: str, module: Any) -> list[Any]:
        """Hooks on one module; returns their handles."""

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            query = kwargs["query"] if "query" in kwargs else args[0] if args else None
            self._running.append((name, module, getattr(query, "ndim", 3) == 2))

        def leave(module: Any, args: Any, output: Any) -> None:
            self._running.pop()

        return [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave, always_call=True),
        ]

    def dropout(self, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """As torch.nn.functional.dropout."""
        if not training or p == 0.0:
            return input
        factor = self._factor(input, p)
        return input.mul_(factor) if inplace else input * factor

    def attention(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ) -> Any:
        """As torch.nn.functional.scaled_dot_product_attention."""
        import torch

        original, options = torch.nn.functional.scaled_dot_product_attention, {"is_causal": is_causal, "scale": scale}
        options["enable_gqa"] = enable_gqa
        if dropout_p == 0.0:
            return original(query, key, value, attn_mask, 0.0, **options)
        # With the unit matrix as values the output is the weights.
        unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device).expand(*key.shape[:-1], -1)
        weights = original(query, key, unit, attn_mask, 0.0, **options)
        if enable_gqa:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        return (weights * self._factor(weights, dropout_p)) @ value

    def _factor(self, tensor: Any, rate: float) -> Any:
        """keep / (1 − rate) in the tensor's layout; the mask is kept under the site's name."""
        import torch

        name, module, unbatched = self._running[-1] if self._running else ("", None, False)
        if name in self.masks:
            raise NotImplementedError(
                f"A dropout site must run once a call, got `{name}` again: give each use of dropout an nn.Dropout of "
                "its own."
            )
        shape = tuple(tensor.shape)
        drawn = np.random.default_rng([self._plan.seed, self._plan.step, len(self.masks)]).random(shape)
        keep = drawn >= rate
        if isinstance(module, torch.nn.MultiheadAttention):
            by_head = keep.reshape(-1, module.num_heads, *shape[-2:])
            self.masks[name] = by_head[0] if unbatched else by_head
        else:
            self.masks[name] = keep
        factor = torch.from_numpy(keep).to(tensor)
        return factor / (1.0 - rate) if rate < 1.0 else factor
