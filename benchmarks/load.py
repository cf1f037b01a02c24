"""Reading a checkpoint of about 1 GiB into JAX's layout: time and peak memory, ours against safetensors and torch.

`python -m benchmarks load` compares the two, each run in a fresh process, A B A B, with the file in the page cache.
`python -m benchmarks load --sweep` times the transpose by block size and threads: layout.py's constants come from it.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxattn.conditions import BUSY, BusyElsewhere, conditions, warning

RESULTS = Path(__file__).parent / "results"
WIDTH = 1024
MIB = 2**20
TARGET_GIB = 1.25


def main(argv: list[str] | None = None) -> int:
    """Run one of the two benchmarks, print its table and write its JSON. 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks load", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small checkpoint, two runs; writes only with --out")
    parser.add_argument("--gib", type=float, help="size of the checkpoint (default 1, quick 0.05)")
    parser.add_argument("--repeats", type=int, help="runs of each side (default 7, quick 2)")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads; ours uses all CPUs it may run on")
    parser.add_argument("--sweep", action="store_true", help="sweep block sizes of the transpose instead")
    parser.add_argument("--out", type=Path, help="directory of the results (default: benchmarks/results)")
    parser.add_argument("--worker", nargs=2, metavar=("SIDE", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        print(json.dumps(_measure(options.worker[0], options.worker[1], options.threads)))
        return 0
    options.gib = options.gib or (0.05 if options.quick else 1.0)
    options.repeats = options.repeats or (2 if options.quick else 7)
    name, result = ("load_sweep", sweep(options)) if options.sweep else ("load", compare(options))
    out = options.out or (None if options.quick else RESULTS)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if options.quick or all(result.get("targets", {}).values()) else 1


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Both sides in fresh processes, interleaved; runs that other processes disturbed are repeated."""
    runs: dict[str, list[dict[str, float]]] = {"jaxattn": [], "safetensors + torch": []}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        sizes = _make_checkpoint(path, options.gib)
        for side in list(runs) * options.repeats:
            runs[side].append(_undisturbed(side, path, options))
    if len({run["checksum"] for side in runs.values() for run in side}) != 1:
        raise SystemExit("The two sides read different values: no number is printed.")
    ours, theirs = (_summary(runs[side]) for side in runs)
    busy = max(run["busy_elsewhere"] for side in runs.values() for run in side)
    result = {
        "suite": "load",
        "conditions": conditions(
            **sizes, rounds=options.repeats, torch_threads=options.threads, page_cache="warm", cores_busy_elsewhere=busy
        ),
        "sides": dict(zip(runs, (ours, theirs), strict=True)),
        "targets": {
            f"peak at most {TARGET_GIB} × the file": ours["peak_gib"]["max"] <= TARGET_GIB * sizes["file_gib"],
            "time no longer than safetensors + torch": ours["seconds"]["median"] <= theirs["seconds"]["median"],
        },
    }
    table = Table("side", "seconds", "min–max", "peak GiB above the empty process", "n", title="A checkpoint into JAX")
    for side, summary in result["sides"].items():
        seconds, peak = summary["seconds"], summary["peak_gib"]
        spread = f"{seconds['min']:.2f}–{seconds['max']:.2f}"
        table.add_row(side, f"{seconds['median']:.2f}", spread, f"{peak['max']:.2f}", str(summary["n"]))
    _print(table, result)
    return result


def _ours(path: Path, module: Any) -> dict[str, Any]:
    """The file in a module whose parameters did not exist before; they come back under the file's names."""
    import jax
    from flax import nnx

    from jaxattn.convert.apply import load_state_dict
    from jaxattn.convert.files import read_checkpoint

    load_state_dict(module, read_checkpoint(path))
    names = {"kernel": "weight", "bias": "bias"}
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    arrays = {f"{'.'.join(map(str, at[:-1]))}.{names[str(at[-1])]}": value.get_value() for at, value in flat}
    return jax.block_until_ready(arrays)


def _abstract_module(path: Path) -> Any:
    """Linear layers under the names of the file, without memory for their parameters."""
    from flax import nnx

    from jaxattn.convert.files import read_checkpoint

    def make() -> nnx.Module:
        rngs, root = nnx.Rngs(0), nnx.Module()
        for name in checkpoint:
            layer, part = name.rsplit(".", 1)
            if part == "weight":
                setattr(root, layer, nnx.Linear(*checkpoint.shape(name)[::-1], rngs=rngs))
        return root

    checkpoint = read_checkpoint(path)
    return nnx.eval_shape(make)


def _theirs(path: Path) -> Any:
    """The same with the usual tools, replacing each matrix as soon as its transpose exists."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            tensors[name] = tensor.T.contiguous()
    return tensors


def _measure(side: str, path: str, threads: int) -> dict[str, float]:
    """In a fresh process: imports, start-up and the empty module first, then one load, timed, with its peak memory."""
    if side == "jaxattn":
        import jax

        jax.device_put(np.zeros(8)).block_until_ready()
        load: Callable[[Path], Any] = partial(_ours, module=_abstract_module(Path(path)))
    else:
        import safetensors.torch  # noqa: F401 - imported so that the timed call does not
        import torch

        torch.set_num_threads(threads)
        torch.ones(2**16).T.contiguous()
        load = _theirs
    empty = _memory("VmRSS")
    _reset_peak()
    elsewhere, start = BusyElsewhere(), time.perf_counter()
    loaded = load(Path(path))
    seconds = time.perf_counter() - start
    busy = elsewhere.cores() or 0.0
    peak = _memory("VmHWM") - empty
    checksum = sum(float(np.asarray(loaded[name])[..., 3:5].sum(dtype=np.float64)) for name in sorted(loaded))
    return {"seconds": seconds, "peak_gib": peak / 2**20, "checksum": round(checksum, 6), "busy_elsewhere": busy}


def _memory(field: str) -> int:
    """KiB of this process, by /proc's name."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _reset_peak() -> None:
    """Forget the peak of the imports."""
    Path("/proc/self/clear_refs").write_text("5")


def _run_worker(side: str, path: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.load", "--threads", str(threads), "--worker", side, str(path)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The worker for {side} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _make_checkpoint(path: Path, gib: float) -> dict[str, Any]:
    """Blocks of four square and two 4:1 linear layers with biases, float32, until the size is reached."""
    from jaxattn.convert.files import save_checkpoint

    rng, tensors, total = np.random.default_rng(0), {}, 0
    shapes = [(WIDTH, WIDTH)] * 4 + [(4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
    for number, shape in enumerate(itertools.cycle(shapes)):
        if total >= gib * 2**30:
            break
        for part, size in (("weight", shape), ("bias", shape[:1])):
            tensors[f"linear{number}.{part}"] = rng.standard_normal(size, np.float32)
            total += int(np.prod(size)) * 4
    save_checkpoint(tensors, path)
    return {"file_gib": path.stat().st_size / 2**30, "tensors": len(tensors), "dtype": "float32", "shapes": shapes}


def _undisturbed(side: str, path: Path, options: argparse.Namespace) -> dict[str, float]:
    """One run with the file in the page cache, begun when the machine is quiet and repeated when it did not stay so."""
    run: dict[str, float] = {}
    for _ in range(1 if options.quick else 5):
        with open(path, "rb") as file:
            while file.read(16 * MIB):
                pass
        deadline = time.monotonic() + (0 if options.quick else 60)
        elsewhere = BusyElsewhere()
        time.sleep(0.5)
        while (elsewhere.cores() or 0) > BUSY and time.monotonic() < deadline:
            elsewhere = BusyElsewhere()
            time.sleep(0.5)
        run = _run_worker(side, path, options.threads)
        if run["busy_elsewhere"] <= BUSY:
            break
    return run


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """GB/s of the transpose by block size, shape, width of type and number of threads; torch and NumPy beside.

    Ours takes new pages from the system for 4 MiB and more every time, as loading does; theirs come back from malloc.
    """
    rows, elsewhere = [], BusyElsewhere()
    table = Table(
        "dtype", "shape", "threads", "best block", "GB/s", "chosen", "torch", "NumPy", title="Transposing copies"
    )
    shapes = [(WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
    for dtype, shape, threads in itertools.product(("float32", "uint16"), shapes, (1, options.threads)):
        row = {"dtype": dtype, "shape": shape, "threads": threads} | _sweep_one(dtype, shape, threads, options.repeats)
        best = max(row["blocks"], key=row["blocks"].get)
        speeds = (row["blocks"][best], row["chosen"], row["torch"], row["numpy"])
        table.add_row(dtype, str(shape), str(threads), best, *(f"{speed:.2f}" for speed in speeds))
        rows.append(row)
    stated = conditions(rounds=options.repeats, torch_threads=options.threads, cores_busy_elsewhere=elsewhere.cores())
    result = {"suite": "load_sweep", "conditions": stated, "unit": "GB/s, median", "rows": rows}
    _print(table, result)
    return result


def _sweep_one(dtype: str, shape: tuple[int, int], threads: int, repeats: int) -> dict[str, Any]:
    import torch

    from jaxattn.convert.layout import BLOCK, aligned_empty, copy_in_blocks

    torch.set_num_threads(threads)
    source = np.random.default_rng(0).integers(0, 1000, shape).astype(dtype)
    tensor = torch.from_numpy(source)

    def blocked(block: tuple[int, int]) -> np.ndarray:
        out = aligned_empty(shape[::-1], source.dtype)
        copy_in_blocks(out, source.T, block, threads)
        return out

    blocks = list(itertools.product((128, 256, 512), (128, 256, 384, 512)))
    calls: dict[str, Callable[[], Any]] = {f"{block[0]}×{block[1]}": lambda b=block: blocked(b) for block in blocks}
    calls |= {"torch": lambda: tensor.T.contiguous(), "numpy": lambda: np.ascontiguousarray(source.T)}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            kept = call()
            seconds[name].append(time.perf_counter() - start)
            del kept
    speed = {name: source.nbytes / 1e9 / statistics.median(times[1:]) for name, times in seconds.items()}
    peers = {name: speed.pop(name) for name in ("torch", "numpy")}
    return peers | {"chosen": speed[f"{BLOCK[0]}×{BLOCK[1]}"], "blocks": speed}


def _summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    def spread(name: str) -> dict[str, Any]:
        values = [run[name] for run in runs]
        return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}

    return {"n": len(runs), "seconds": spread("seconds"), "peak_gib": spread("peak_gib")}


def _print(table: Table, result: dict[str, Any]) -> None:
    console = Console()
    console.print(table)
    for target, met in result.get("targets", {}).items():
        console.print(f"{'met' if met else 'MISSED'}: {target}")
    if text := warning(result["conditions"]):
        console.print(text)


if __name__ == "__main__":
    sys.exit(main())
