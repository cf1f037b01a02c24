"""What is global is switched while somebody needs it, and is as before afterwards, interrupted anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch
from flax import nnx

from jaxattn._switching import Setting, Switches
from jaxattn.capture import capture
from jaxattn.parity.settings import float64_types, highest_precision, oracle_settings

from .interrupting import interrupted_everywhere


class Leaf(nnx.Module):
    def __call__(self, x):
        return x + 1


class Heir(Leaf):
    """Inherits its `__call__`."""


class Stem(nnx.Module):
    def __init__(self):
        self.leaf, self.heir = Leaf(), Heir()

    def __call__(self, x):
        return self.heir(self.leaf(x))


def test_capture_interrupted_anywhere_leaves_classes_as_they_were_and_the_next_one_complete():
    module, own = Stem(), (Leaf.__call__, Stem.__call__)
    steps = 0
    files = ("jaxattn/capture.py", "_switching.py", "core/record.py", "contextlib.py")
    for _ in interrupted_everywhere(lambda: capture(module, 1), files, by=5):
        assert (Leaf.__call__, Stem.__call__) == own and "__call__" not in vars(Heir)
        assert capture(module, 1)[1] == {"leaf:output": 2, "heir:output": 3, ":output": 3}
        steps += 1
    assert steps > 100


def torch_state():
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue] -- made at run time
        jax.config.jax_default_matmul_precision,  # pyright: ignore[reportAttributeAccessIssue] -- made at run time
    )


def test_settings_interrupted_anywhere_are_as_they_were():
    def run() -> None:
        with oracle_settings("cpu"), float64_types(), highest_precision():
            assert torch_state() == (False, "highest", True, False, False, True, "highest")

    steps = 0
    with torch.inference_mode(), torch.autocast("cpu"), matmul_precision("medium"):
        before = torch_state()
        assert before == (True, "medium", False, True, True, False, None)
        files = ("settings.py", "_switching.py", "contextlib.py")
        for _ in interrupted_everywhere(run, files):
            assert torch_state() == before
            steps += 1
    assert steps > 300


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_first_one_in_switches_and_the_last_one_out_restores():
    values, switches = {"here": "before", "there": "before"}, Switches()

    def setting(name: str) -> Setting:
        return Setting(name, lambda: values[name], lambda value: values.update({name: value}), lambda before: "inside")

    first, second = switches.held([setting("here")]), switches.held([setting("here"), setting("there")])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert values == {"here": "inside", "there": "inside"}
    second.__exit__(None, None, None)
    assert values == {"here": "before", "there": "before"}


def test_what_somebody_else_sets_meanwhile_stays():
    values, switches = {"here": "before"}, Switches()
    here = Setting("here", lambda: values["here"], lambda value: values.update(here=value), lambda before: "inside")
    with switches.held([here]):
        values["here"] = "theirs"
        with switches.held([here]):
            assert values["here"] == "inside"
        assert values["here"] == "inside"
    assert values["here"] == "theirs"
