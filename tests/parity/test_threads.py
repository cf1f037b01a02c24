"""Proofs in threads, and proofs that are interrupted: every answer is right, and what the user owns is as before."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaxattn
from jaxattn.parity import DropoutPlan, compare, trace, train
from jaxattn.parity.arguments import Arguments
from jaxattn.parity.runs import FLOAT32, FLOAT64, Pair
from jaxattn.parity.torch_side import TorchRun

from ..inputs import generator

THREADS = 8


def layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(6, 2, 5, dropout=0.25, batch_first=True).eval()


def inputs(width: int) -> np.ndarray:
    return generator("threads").standard_normal((2, 5, width)).astype(np.float32)


def together(work: Callable[[int], bool]) -> list[Any]:
    """What each of the threads, started at once, got: its result, or its error."""
    found: list[Any] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Untouched:
    """A look at modules and at torch, to be taken again afterwards."""

    def __init__(self, *modules: nn.Module):
        self._modules = modules
        self._before = self._look()

    def _look(self) -> Any:
        parts = [part for module in self._modules for part in module.modules()]
        tensors = [tensor for part in parts for tensor in (*part.parameters(False), *part.buffers(False))]
        hooks = [[*part._forward_hooks, *part._forward_pre_hooks] for part in parts]
        functional: Any = nn.functional
        return (
            [(id(tensor), tensor.dtype, tensor.data_ptr(), tensor._version, tensor.grad) for tensor in tensors],
            [(id(part), sorted(vars(part)), part.training) for part in parts],
            hooks,
            (functional.dropout, functional.scaled_dot_product_attention, functional.multi_head_attention_forward),
            (torch.backends.mha.get_fastpath_enabled(), torch.get_float32_matmul_precision()),
            (torch.is_grad_enabled(), torch.get_rng_state().tolist()),
        )

    def check(self) -> None:
        assert self._look() == self._before


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.25)).eval()


@pytest.mark.parametrize("dropout", [None, DropoutPlan(1)], ids=["evaluation", "dropout"])
def test_torch_runs_of_one_module_don_t_see_each_other(dropout: DropoutPlan | None) -> None:
    module = layer()
    given = Arguments.of(module.forward, (inputs(6),), {})
    pair = Pair(module, jaxattn.from_torch(module), given, FLOAT32, 0, dropout)
    alone = {dtype: pair.run_torch(dtype) for dtype in (FLOAT64, FLOAT32)}
    before = Untouched(module)

    def work(number: int) -> bool:
        dtypes = (FLOAT64, FLOAT32) if number % 2 else (FLOAT32, FLOAT64)
        return all(same_run(pair.run_torch(dtype), alone[dtype]) for dtype in dtypes for _ in range(4))

    assert together(work) == [True] * THREADS
    before.check()


def same_run(one: TorchRun, other: TorchRun) -> bool:
    gradients = [(run.argument_gradients, run.parameter_gradients, run.masks) for run in (one, other)]
    arrays = [
        [*run.outputs.arrays, *(a for each in of for a in each.values())]
        for run, of in zip((one, other), gradients, strict=True)
    ]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


def test_threads_that_compare_one_module_are_all_right() -> None:
    module = small()
    twin, x = jaxattn.from_torch(module), inputs(3)
    before = Untouched(module)

    def work(number: int) -> bool:
        return compare(module, twin, x, dropout=DropoutPlan(number) if number % 2 else None).ok

    assert together(work) == [True] * THREADS
    before.check()


def test_threads_that_trace_and_train_are_all_right() -> None:
    shared, own = small(), [small() for _ in range(THREADS)]
    x, before = inputs(3), Untouched(shared, *own)

    def work(number: int) -> bool:
        module = own[number] if number % 4 < 2 else shared
        twin = jaxattn.from_torch(module)
        if number % 2:
            return trace(module, twin, x).first is None
        return train(module, twin, torch.optim.SGD, [x], 2, dropout=DropoutPlan(number)).ok

    assert together(work) == [True] * THREADS
    before.check()
