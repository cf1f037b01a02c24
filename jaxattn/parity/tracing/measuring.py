"""Every paired call of both sides, measured: by itself on torch's own input, and in the whole run."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from flax import nnx

from ..arguments import Arguments
from ..conditioning import DRAWS, moved_arguments, moved_module, movements
from ..criterion import OUTPUT_TOLERANCE, algorithm_verdict, output_scale
from ..outputs import Flat
from ..trace_report import Layer
from . import flax_calls, torch_calls
from .attention_inside import Attention, attention_inside
from .flax_calls import FlaxCall
from .inside_pairs import inside_call, takes_the_same
from .layer_verdicts import Local, layer_of
from .torch_calls import TorchCall


@dataclass(frozen=True)
class Measured:
    """One layer of the report with what it was made of."""

    layer: Layer
    call: TorchCall
    local: Local
    attention: Attention | None

    @property
    def parts_locally(self) -> bool:
        return any(problem.startswith("local") for problem in self.layer.problems)

    @property
    def parts_in_whole(self) -> bool:
        return any(problem.startswith("end to end") for problem in self.layer.problems)


@dataclass
class Sides:
    """Both sides of a trace, in float64.

    Attributes:
        calls: torch's.
        module: Flax's, in float64.
        arguments: of the whole call.
        paired: torch path → Flax path.
        narrow: torch's calls in float32, where its float64 run is none; they then say what is allowed.
        whole: Flax's calls in one run of the whole module.
        notes: what was noticed on the way.
        inside: torch paths of attention whose partner holds an output projection, too.
        seed: of the directions in which inputs and parameters are moved by one ulp.
    """

    calls: Sequence[TorchCall]
    module: nnx.Module
    arguments: Arguments
    paired: dict[str, str]
    narrow: Sequence[TorchCall] = ()
    whole: Sequence[FlaxCall] = ()
    whole_error: Exception | None = None
    notes: list[str] = field(default_factory=list)
    seed: int = 0
    inside: frozenset[str] = frozenset()
    _moved: list[dict[tuple[str, int], TorchCall]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.modules = flax_calls.modules_of(self.module)
        try:
            self.whole = flax_calls.calls_of(self.module, self.arguments)
        except Exception as error:  # whatever Flax raises where torch doesn't is a finding
            self.whole_error = error

    def measure(self) -> list[Measured]:
        """All paired calls in the order in which torch finished them."""
        found = {(call.path, call.call): call for call in self.comparable(self.whole)}
        narrow = {(call.path, call.call): call for call in self.narrow}
        measured = []
        for call, attention in self._with_inside(self.calls):
            path = self.paired.get(call.path)
            if path is None or not callable(self.modules.get(path)):
                continue
            local = self.local(call)
            if local.error is not None and self.whole_error is None:
                local = Local(None)  # Flax calls it otherwise than torch, or not at all: its own run raises nothing
            theirs = narrow.get((call.path, call.call))
            moves = partial(self._local_moves, call), partial(self._whole_moves, call)
            layer = layer_of(call, path, local, found.get((path, call.call)), theirs, moves)
            measured.append(Measured(layer, call, local, attention))
        return measured

    def comparable(self, whole: Sequence[FlaxCall]) -> Iterator[FlaxCall]:
        """Flax's calls; of an attention that is paired by its inside what torch's returns, without projection."""
        paths = {self.paired[path] for path in self.inside}
        for call in whole:
            inside = inside_call(call) if call.path in paths else call
            if inside is not None:
                yield inside

    def _local_moves(self, call: TorchCall) -> list[float]:
        """Of one call by itself."""
        results = []
        for seed in range(self.seed, self.seed + DRAWS):
            moved = moved_module(call.module, seed)
            results.append(torch_calls.call_torch(moved, moved_arguments(call.arguments, seed)).arrays)
        return movements(call.outputs.arrays, results)

    def _whole_moves(self, call: TorchCall) -> list[float]:
        """Of one call in runs of the whole module, which are made once."""
        if not self._moved:
            whole = self.calls[-1].module
            for seed in range(self.seed, self.seed + DRAWS):
                calls = torch_calls.calls_of(moved_module(whole, seed), moved_arguments(self.arguments, seed))
                self._moved.append({(each.path, each.call): each for each, _ in self._with_inside(calls)})
        again = [calls[call.path, call.call] for calls in self._moved if (call.path, call.call) in calls]
        return movements(call.outputs.arrays, [each.outputs.arrays for each in again])

    def local(self, call: TorchCall, *, again: bool = False) -> Local:
        """The partner of a torch call, on torch's arguments of that call."""
        if call.path in self.inside:
            mine = {(each.path, each.call): each for each in self.whole}.get((self.paired[call.path], call.call))
            return Local(inside_call(mine) if mine is not None and takes_the_same(call, mine) else None)
        if not call.path and not again:
            return Local(self.whole[-1] if self.whole else None, self.whole_error)
        try:
            names = list(inspect.signature(call.module.forward).parameters)
            return Local(flax_calls.calls_of(self.modules[self.paired[call.path]], call.arguments, names=names)[-1])
        except Exception as error:  # as above
            return Local(None, error)

    def _with_inside(self, calls: Sequence[TorchCall]) -> Iterator[tuple[TorchCall, Attention | None]]:
        """torch's calls; before one of nn.MultiheadAttention that of its output projection, which no hook sees."""
        for call in calls:
            attention = self._inside(call, calls)
            if attention is not None and attention.projection is not None:
                inputs = Arguments.of(call.module.out_proj.forward, (attention.merged,), {})
                output = Flat(False, ("",), (attention.projection(attention.merged),), ())
                path = f"{call.path}.out_proj" if call.path else "out_proj"
                yield TorchCall(path, call.call, call.module.out_proj, inputs, output, len(calls)), None
            yield call, attention

    def _inside(self, call: TorchCall, calls: Sequence[TorchCall]) -> Attention | None:
        """What an attention call computed inside, if that gives what torch gave."""
        try:
            attention = attention_inside(call, calls)
            results = [] if attention is None else attention.results()
        except ValueError:  # projections called q, k, v of a module that computes something else with them
            return None
        for ours, theirs in zip(results, call.outputs.arrays, strict=False):
            if ours.shape != theirs.shape or not _agree(ours, theirs):
                if attention is not None and attention.projection is not None:
                    name = call.path or type(call.module).__name__
                    self.notes.append(
                        f"`{name}`: what was recomputed inside differs from its own result, and is left out"
                    )
                return None
        return attention


def _agree(ours: np.ndarray, theirs: np.ndarray) -> bool:
    scale = output_scale(theirs)
    return algorithm_verdict(ours, theirs, scale=scale, tolerance=OUTPUT_TOLERANCE).problem is None
