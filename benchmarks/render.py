"""What stands in README's tables, made from the results of one suite each."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxattn.conditions import describe, duration, factor
from jaxattn.interleaved import COMPILED, FLAX_EAGER, FLAX_JIT, TORCH_EAGER

from .encoder import TORCH_COMPILE
from .gate import BOUND
from .memory import MIB
from .minilm import NNX_ATTENTION, PLAIN
from .overhead import BARE
from .systems import JAX_NN, OURS, TORCH

Data = Mapping[str, Any]


def render_modules(data: Data) -> str:
    """One row a module; times of the output alone."""
    header = ["module", "PyTorch counterpart", "float32 error (torch's own)", f"jit over {FLAX_EAGER}"]
    rows = [
        [
            f"`{result['module']}`",
            f"`{result['counterpart']}`",
            _errors(result),
            _speedup(result, FLAX_EAGER),
            _speedup(result, TORCH_EAGER),
        ]
        for result in data["results"]
    ]
    caption = (
        "Error: largest difference of outputs (weights included) from a float64 run. jit over …: how many times faster "
        "the jitted module gives its output (lowest–highest round). torchref's SinusoidalPositionalEncoding computes "
        "its table in every call."
    )
    if "peers" in data:
        over = [f"{factor(value['median'])} over {name}" for name, value in data["peers"]["ratio_over"].items()]
        caption += f" Self-attention through {COMPILED} with the same weights, output only: {', '.join(over)}."
    return markdown([*header, f"jit over {TORCH_EAGER}"], rows, caption, data)


def render_minilm(data: Data) -> str:
    """One row a shape: times of all candidates."""
    names, header, rows = _candidates(data, (FLAX_EAGER, FLAX_JIT, COMPILED, NNX_ATTENTION, TORCH_EAGER, PLAIN))
    caption = (
        "Medians. torch eager is transformers' BertModel with its default attention (sdpa); plain attention is "
        'attn_implementation="eager". Without the pooler on all sides.'
    )
    if NNX_ATTENTION in names:
        caption += " nnx attention is the same model with flax.nnx.dot_product_attention in place of our operation."
    return markdown(header, rows, caption + _targets(data), data)


def render_encoder(data: Data) -> str:
    """Times of all candidates, and of porting."""
    _, header, rows = _candidates(data, (FLAX_EAGER, FLAX_JIT, COMPILED, TORCH_EAGER, TORCH_COMPILE))
    caption = "Medians. torch eager runs PyTorch's fused encoder layer, as it ships."
    return markdown(header, rows, caption + _targets(data), data)


def _candidates(data: Data, order: Sequence[str]) -> tuple[list[str], list[str], list[list[str]]]:
    """(those measured, the header, one row a shape: errors, all times, speedups of the jitted module)"""
    names = [name for name in order if name in data["results"][0]["modes"][0]["timings"]]
    over = (FLAX_EAGER, TORCH_EAGER)
    header = ["batch × length", "float32 error (torch's own)", *names, *(f"jit over {name}" for name in over)]
    rows = []
    for result in data["results"]:
        timings = result["modes"][0]["timings"]
        times = [duration(timings[name]["median_s"]) for name in names]
        shape = f"{result['batch']} × {result['length']}"
        rows.append([shape, _errors(result), *times, *(_speedup(result, name) for name in over)])
    return names, header, rows


def render_operation(data: Data) -> str:
    """One row a shape: our time and how many times as fast it is as each peer, full and causal."""
    peers = [peer for peer in (TORCH, JAX_NN) if peer in data["summary"]]
    by_shape: dict[str, dict[str, Data]] = {}
    for result in data["results"]:
        shape, _, kind = result["label"].rpartition(" ")
        by_shape.setdefault(shape, {})[kind] = result
    kinds = ("full", "causal")
    header = ["shape", *(f"{kind}: {column}" for kind in kinds for column in ("ours", *(f"over {p}" for p in peers)))]
    rows = []
    for shape, pair in by_shape.items():
        cells = [cell for kind in kinds for cell in _operation_cells(pair.get(kind), peers)]
        rows.append([shape, *cells])
    means = [f"over {peer} {factor(over['geometric_mean'])}" for peer, over in data["summary"].items()]
    caption = (
        "B batch, N query heads, K kv heads, T queries, S keys, H width; K = N and S = T unless given. ours is the "
        "median; over …: how many times as fast ours is, by medians of the same rounds. Each result was compared with "
        f"float64 first (allowed relative difference {BOUND:.0e}). Geometric means over the measured points: "
        f"{', '.join(means)}."
    )
    return markdown(header, rows, caption + _targets(data), data)


def _operation_cells(result: Data | None, peers: Sequence[str]) -> list[str]:
    if result is None:
        return ["–"] * (1 + len(peers))
    over = result["ratio_over"]
    ratios = [factor(over[peer]["median"]) if peer in over else "–" for peer in peers]
    return [duration(result["timings"][OURS]["median_s"]), *ratios]


def render_memory(data: Data) -> str:
    """One row a system and kind: MiB by length."""
    lengths = list(data["results"][0]["bytes"])
    header = ["system, mask, computation", *(f"T = {length}" for length in lengths)]
    rows = [[row["label"], *(f"{row['bytes'][length] / MIB:.1f}" for length in lengths)] for row in data["results"]]
    caption = "MiB beside inputs and results, as XLA plans them for one example with 8 heads of width 64."
    return markdown(header, rows, caption + _targets(data), data)


def render_overhead(data: Data) -> str:
    """One row a way of calling."""
    [result] = data["results"]
    rows = []
    for name, timing in result["timings"].items():
        spread = f"{duration(timing['q1_s'])}–{duration(timing['q3_s'])}"
        over = factor(result["over_bare"][name]["median"]) if name in result["over_bare"] else "1"
        rows.append([name, duration(timing["median_s"]), spread, over])
    caption = (
        f"One call of an encoder that holds {result['arrays']} arrays and computes next to nothing, the same program "
        f"in every row; {BARE} takes the arrays as a tuple."
    )
    header = ["way of calling", "median", "quartiles", f"over {BARE}"]
    return markdown(header, rows, caption + _targets(data), data)


def _targets(data: Data) -> str:
    stated = [
        f"{target['what']} {target['measured']} (target {target['wanted']}{'' if target['met'] else ', missed'})"
        for target in data.get("targets", [])
    ]
    return f" Targets: {'; '.join(stated)}." if stated else ""


def _errors(result: Data) -> str:
    parity = result["parity"]
    return f"{parity['error']:.1e} ({parity['torch_error']:.1e})"


def _speedup(result: Data, name: str) -> str:
    speedup = result["modes"][0]["jit_speedup_over"][name]
    return f"{factor(speedup['median'])} ({factor(speedup['low'])}–{factor(speedup['high'])})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, data: Data) -> str:
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{table}\n\n{caption} Measured on: {describe(data['conditions'])}.\n"
