"""The harness on a made clock: what it runs, when it waits, what it counts."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxattn.interleaved import Ratio, Timing, compile_time, interleave, ratio


class World:
    """A clock that only sleeping, calling and waiting move, and a diary of all of it."""

    def __init__(self):
        self.now = 0.0
        self.diary: list[str] = []

    def clock(self) -> float:
        self.diary.append("clock")
        return self.now

    def sleep(self, seconds: float) -> None:
        self.diary.append(f"sleep {seconds}")
        self.now += seconds

    def asynchronous(self, name: str, *, dispatch: float, work: float, first: float = 0.0):
        """Returns at once; the work passes in block_until_ready. The first call after a sleep costs `first` more."""

        def wait() -> None:
            self.diary.append(f"wait {name}")
            self.now += work

        def call():
            cold = self.diary[-1].startswith("sleep")
            self.diary.append(f"call {name}")
            self.now += dispatch + (first if cold else 0.0)
            return {"output": SimpleNamespace(block_until_ready=wait)}

        return call

    def synchronous(self, name: str, *, work: float):
        def call() -> str:
            self.diary.append(f"call {name}")
            self.now += work
            return "finished"

        return call

    def interleave(self, candidates, **how):
        return interleave(candidates, clock=self.clock, sleep=self.sleep, **how)


def test_candidates_take_turns_rested_warmed_up_and_waited_for():
    world = World()
    jax_like = world.asynchronous("A", dispatch=0.1, work=0.9)
    torch_like = world.synchronous("B", work=2.0)
    world.interleave({"A": jax_like, "B": torch_like}, rounds=2, min_block_s=0.0, sleep_s=0.5)
    block_a = ["sleep 0.5", "call A", "wait A", "clock", "call A", "wait A", "clock"]
    block_b = ["sleep 0.5", "call B", "clock", "call B", "clock"]
    assert world.diary == (block_a + block_b) * 3  # one round is thrown away


def test_a_block_repeats_until_it_has_lasted_long_enough():
    world = World()
    candidates = {"A": world.asynchronous("A", dispatch=0.25, work=0.5), "B": world.synchronous("B", work=4.0)}
    timings = world.interleave(candidates, rounds=3, min_block_s=2.0, sleep_s=0.0)
    assert timings["A"] == Timing((0.75,) * 3, calls=9)
    assert timings["B"] == Timing((4.0,) * 3, calls=3)


def test_a_slow_first_call_is_not_timed():
    world = World()
    candidates = {"A": world.asynchronous("A", dispatch=0.5, work=0.5, first=100.0)}
    assert world.interleave(candidates, rounds=2, min_block_s=3.0, sleep_s=1.0)["A"] == Timing((1.0, 1.0), calls=6)


def test_the_first_round_is_thrown_away():
    world = World()
    costs = iter([1.0, 50.0, 1.0, 2.0, 1.0, 4.0])

    def call() -> None:
        world.now += next(costs)

    assert world.interleave({"A": call}, rounds=2, min_block_s=0.0)["A"].seconds == (2.0, 4.0)


def test_progress_counts_every_block():
    told = []
    world = World()
    candidates = {"A": world.synchronous("A", work=1.0), "B": world.synchronous("B", work=1.0)}
    world.interleave(candidates, rounds=1, progress=lambda *step: told.append(step))
    assert told == [("A", 0, 4), ("B", 1, 4), ("A", 2, 4), ("B", 3, 4)]


@pytest.mark.parametrize(("candidates", "rounds"), [({}, 3), ({"A": lambda: None}, 0)])
def test_nothing_to_time_is_an_error(candidates, rounds):
    with pytest.raises(ValueError, match="must be at least 1"):
        interleave(candidates, rounds=rounds)


def test_median_quartiles_and_the_ratio_of_the_same_rounds():
    slow, fast = Timing((4.0, 2.0, 9.0, 3.0, 6.0), 5), Timing((1.0, 2.0, 3.0, 1.0, 2.0), 5)
    assert (slow.median, slow.spread, slow.n) == (4.0, (3.0, 6.0), 5)
    assert ratio(slow, fast) == Ratio(2.0, 1.0, 4.0)
    assert slow.to_json() == {
        "median_s": 4.0,
        "q1_s": 3.0,
        "q3_s": 6.0,
        "n": 5,
        "calls": 5,
        "seconds": [4.0, 2.0, 9.0, 3.0, 6.0],
    }
    with pytest.raises(ValueError):
        ratio(slow, Timing((1.0,), 1))


def test_compile_time_traces_anew_and_runs_nothing():
    traced, ran = [], []

    def function(x):
        traced.append(x.shape)
        jax.debug.callback(lambda value: ran.append(value), x)
        return x + 1

    jax.block_until_ready(jax.jit(function)(jnp.ones(3)))
    jax.effects_barrier()
    assert (len(traced), len(ran)) == (1, 1)
    assert compile_time(function, jnp.ones(3)) > 0
    assert compile_time(function, jnp.ones(3)) > 0
    jax.effects_barrier()
    assert (len(traced), len(ran)) == (3, 1)
