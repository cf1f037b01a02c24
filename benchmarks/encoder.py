"""A ported nn.TransformerEncoder, 12 layers, 768 wide: how long porting takes, and its speed under jaxattn.compile.

`torch eager` is the module as PyTorch ships it, its fused encoder layer included; `torch.compile` is the same module
compiled by PyTorch for this shape.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import jaxattn
from jaxattn.interleaved import COMPILED, TORCH_EAGER, Timing, ratio
from jaxattn.timing import ParityFailure, bench_pair

from .conditions import FULL, QUICK, announce, compact, options, print_report, write
from .ratios import Verdict, print_verdicts
from .systems import reason

SIZES = {"batch": 4, "length": 256, "d_model": 768, "nhead": 12, "dim_feedforward": 3072, "num_layers": 12}
TINY = {"batch": 2, "length": 8, "d_model": 32, "nhead": 4, "dim_feedforward": 64, "num_layers": 2}
TORCH_COMPILE = "torch.compile"
PORT_S = 2.0
PORTS = 3


def main(argv: list[str]) -> int:
    """0, or 1 if the sides differ (nothing is written then) or a full run misses a target."""
    given = options("encoder", __doc__, argv)
    sizes = TINY if given.quick else SIZES
    torch_module = torch_encoder(sizes)
    port_s = port_times(torch_module)
    announce(f"from_torch: {', '.join(f'{seconds:.2f} s' for seconds in port_s)}")
    flax_module = jaxattn.from_torch(torch_module)
    x = np.random.default_rng(0).standard_normal((sizes["batch"], sizes["length"], sizes["d_model"]), np.float32)
    announce("comparing, compiling, timing …")
    how: dict[str, Any] = {
        "peers": compiled_by_torch(torch_module, x),
        "jax_peers": {COMPILED: jaxattn.compile(flax_module)},
        **(QUICK if given.quick else FULL),
    }
    try:
        report = bench_pair(torch_module, flax_module, [x], **how)
    except ParityFailure as failure:
        announce(f"{failure}\n{failure.report}")
        return 1
    label = f"batch {sizes['batch']}, length {sizes['length']}"
    result = {"label": label, **sizes, **compact(report)}
    print_report(label, result)
    verdicts = judge(port_s, report.modes[0].timings)
    met = print_verdicts(verdicts)
    further = {"port_s": port_s, "targets": [verdict.to_json() for verdict in verdicts]}
    inputs = "batch {batch}, length {length}, {num_layers} layers, width {d_model}".format(**sizes)
    write("encoder", [result], given, further, title="nn.TransformerEncoder, ported", inputs=inputs, dtype="float32")
    return 0 if met or given.quick else 1


def torch_encoder(sizes: Mapping[str, int]) -> Any:
    """In evaluation mode, with torch's own initial weights; the layers are no copies of one another."""
    import torch

    torch.manual_seed(0)
    widths: dict[str, Any] = {name: sizes[name] for name in ("d_model", "nhead", "dim_feedforward")}
    layer = torch.nn.TransformerEncoderLayer(**widths, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, sizes["num_layers"], enable_nested_tensor=False).eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.1 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5)
    return encoder


def port_times(torch_module: Any) -> list[float]:
    """Seconds that from_torch takes, once after the other; the first includes what a process does once."""
    times = []
    for _ in range(PORTS):
        start = time.perf_counter()
        jaxattn.from_torch(torch_module)
        times.append(time.perf_counter() - start)
    return times


def compiled_by_torch(torch_module: Any, x: np.ndarray) -> dict[str, Any]:
    """The module under torch.compile, compiled for this input; nothing where that does not work."""
    import torch

    compiled = torch.compile(torch_module, dynamic=False)
    try:
        with torch.inference_mode():
            compiled(torch.from_numpy(x))
    except Exception as error:  # whatever the compiler raises, the rest is still measured
        announce(f"{TORCH_COMPILE} is left out: {reason(error)}")
        return {}
    return {TORCH_COMPILE: compiled}


def judge(port_s: list[float], timings: Mapping[str, Timing]) -> list[Verdict]:
    """Porting, and speed over both of torch's ways."""

    def times_as_fast_as(name: str) -> float:
        return ratio(timings[name], timings[COMPILED]).median if name in timings else math.nan

    speeds = [Verdict(f"{COMPILED} over {name}", times_as_fast_as(name), 1) for name in (TORCH_EAGER, TORCH_COMPILE)]
    return [Verdict("from_torch, the slowest", max(port_s), PORT_S, at_least=False, unit="s"), *speeds]
