"""The same optimizer steps in PyTorch and in JAX: losses, gradients and parameters side by side."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from flax import nnx

from ..convert.unwrap import unwrap
from . import limits
from .arguments import Arguments, check_numbers
from .conditions import check_modules, devices, versions
from .criterion import GRADIENT_TOLERANCE, TRAINING_TOLERANCE
from .dropout_plan import DropoutPlan, check_plan
from .runs import FLOAT64
from .settings import float64_types
from .train_report import TrainReport
from .training.data import Batch, Loss
from .training.flax_training import FlaxTraining
from .training.judging import Judge
from .training.torch_training import TorchTraining
from .weights import compare_weights


def train(
    torch_module: Any,
    flax_module: nnx.Module,
    optimizer: Any,
    data: Iterable[Any],
    steps: int | None = None,
    *,
    loss: Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]] | None = None,
    tx: Any = None,
    schedule: Any = None,
    clip_norm: float | None = None,
    dropout: DropoutPlan | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> TrainReport:
    """Train copies of both modules in float64 and say at which step they part.

    A step parts where the losses differ by more than 1e-9 · max(1, |loss|) or a parameter, after the update, by more
    than 1e-9; the first step also where a gradient differs by more than 1e-11 of the largest. Neither module, nor the
    optimizer, is changed.

    Args:
        torch_module: a live PyTorch module, deterministic (call .eval(), or give a plan for its dropout).
        flax_module: its twin (`jaxattn.from_torch(torch_module)`).
        optimizer: a torch optimizer of the module's parameters, param groups and state included, or a function that
            makes one of them. JAX runs its translation (`jaxattn.convert.optimizer`) unless `tx` is given.
        data: the arguments of each step: a tuple, or one array. With `loss` the last one is the target, and only the
            others go into the modules.
        steps: how many; by default one for each item of `data`, which is repeated if it has fewer.
        loss: (output, target) → a scalar; one function made of operators that both sides have, or (torch's, JAX's). By
            default the mean square of output − target for every floating output, targets drawn from N(0, 1).
        tx: your own optax transformation, to be checked against `optimizer`.
        schedule: torch's scheduler of `optimizer`, which goes on where it stands; or a function: step → factor of the
            learning rate. What can't be traced is tabulated for `steps` (or for as many as `data` has).
        clip_norm: clip the gradients as torch.nn.utils.clip_grad_norm_ does.
        dropout: train in training mode, with keep masks that are the same on both sides.
        seed: of the targets.
        **kwargs: keyword arguments of both modules, the same in every step.

    Returns:
        A TrainReport: `print(report)`, `report.ok`, `report.assert_ok()`, `report.to_json()`.

    Raises:
        NotImplementedError: an optimizer, scheduler or option without an exact translation into optax.
        ValueError: no data; dropout active without a plan; modules that return other arrays; parameters that get a
            gradient in some steps only.
        TypeError: no modules, arguments that are no numbers, a Flax module that takes no keep masks, one `loss` for
            both sides that fails on JAX arrays.
        ImportError: torch is not installed.
    """
    check_modules(torch_module, flax_module)
    check_plan(dropout)
    torch_module = unwrap(torch_module).module
    weights = compare_weights(torch_module, flax_module)
    problems = [f"before the first step: {problem}" for problem in weights.problems]
    pair = Loss.of(loss)
    planned = len(data) if steps is None and isinstance(data, Sized) else steps
    batches = _batches(torch_module, data, steps, kwargs, with_target=loss is not None)
    ours = None
    judge = Judge()
    with float64_types():
        theirs = TorchTraining(torch_module, optimizer, pair.torch, schedule, clip_norm, dropout, seed)
        for index, batch in enumerate(batches):
            expected = theirs.gradients(index, batch)
            if ours is None:
                ours = FlaxTraining(flax_module, theirs, pair.jax, tx, clip_norm, planned)
            got = ours.step(batch, expected)
            judge.add(index, expected, theirs.update(), got)
    if ours is None:
        raise ValueError("`data` must hold the arguments of one step at least, got none.")
    notes = [f"truth limited to float32 by {name}" for name in limits.certain_limits(torch_module, theirs.watch)[:3]]
    return TrainReport(
        type(torch_module).__name__,
        type(flax_module).__name__,
        theirs.description,
        tuple(judge.steps),
        judge.first,
        (*problems, *judge.problems),
        (*notes, *judge.notes),
        devices(torch_module),
        versions("optax"),
        {
            "dtype": "float64",
            "matmul_precision": "highest",
            "torch_fast_path": False,
            "seed": seed,
            "dropout_seed": None if dropout is None else dropout.seed,
            "clip_norm": clip_norm,
            "optax": "the translation of torch's optimizer" if tx is None else "given",
            "training": TRAINING_TOLERANCE,
            "gradients": GRADIENT_TOLERANCE,
        },
    )


def _batches(
    torch_module: Any, data: Iterable[Any], steps: int | None, kwargs: dict[str, Any], *, with_target: bool
) -> Iterator[Batch]:
    """The arguments of each step, in float64; the data once more from its start when it ends early."""
    seen: list[Batch] = []
    count = itertools.count() if steps is None else range(steps)
    items = iter(data)
    for index in count:
        item = next(items, None)
        if item is not None:
            seen.append(_batch(torch_module, item, kwargs, with_target))
            yield seen[-1]
        elif steps is None or not seen:
            return
        else:
            yield seen[index % len(seen)]


def _batch(torch_module: Any, item: Any, kwargs: dict[str, Any], with_target: bool) -> Batch:
    values = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    inputs, targets = (values[:-1], values[-1:]) if with_target else (values, ())
    if with_target and not inputs:
        raise ValueError("With `loss`, an item of `data` must be (arguments …, target), got one value.")
    given, target = Arguments.of(torch_module.forward, inputs, kwargs), Arguments.of(None, targets, {})
    check_numbers(given)
    check_numbers(target)
    return Batch(given.at(FLOAT64), target.at(FLOAT64))
