"""What a measured time depends on, and how times are worded."""

import datetime
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

#: Cores taken by other processes above which times are not worth quoting: torch's threads wait for each other spinning.
BUSY = 0.2
#: And above which none are shown at all.
TOO_BUSY = 0.5
#: Packages whose version matters where they take part.
PEERS = ("equinox", "keras")


def conditions(**facts: Any) -> dict[str, Any]:
    """Machine, versions, threads, date, and the given facts (shapes, dtype, …)."""
    torch = sys.modules.get("torch")
    device = jax.devices()[0]
    packages = ["jax", "jaxlib", "flax", "torch", "numpy", *(peer for peer in PEERS if peer in sys.modules)]
    return {
        **facts,
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu_model(),
        "cores": cores(),
        "threads": {
            "torch": torch.get_num_threads() if torch else None,
            "jax": "XLA's CPU client uses all cores" if device.platform == "cpu" else "not on the CPU",
        },
        "device": {"torch": "cpu", "jax": device.device_kind},
        "versions": {
            "python": platform.python_version(),
            **{package: package_version(package) for package in packages},
        },
    }


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(package: str) -> str | None:
    """None where it isn't installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


class BusyElsewhere:
    """How many cores other processes keep busy from its construction on; Linux only."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), self._others()

    def cores(self) -> float | None:
        """Mean since the construction; None where the system doesn't tell."""
        wall, before = self._start
        after = self._others()
        if before is None or after is None:
            return None
        return round(max(after - before, 0.0) / (time.perf_counter() - wall), 2)

    @staticmethod
    def _others() -> float | None:
        """CPU seconds of all other processes since the system started."""
        try:
            user, nice, system, _, _, irq, soft_irq, steal = Path("/proc/stat").read_text().split()[1:9]
        except (OSError, ValueError):
            return None
        ticks = sum(map(int, (user, nice, system, irq, soft_irq, steal)))
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def duration(seconds: float) -> str:
    """Three digits and a unit: 12.3 µs, 4.56 ms, 1.20 s."""
    for scale, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * scale < 999.5:
            value = seconds * scale
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{seconds:.2f} s"


def factor(value: float) -> str:
    """Two digits: 0.74×, 3.1×, 48×."""
    return f"{value:.{2 if value < 0.995 else 1 if value < 9.95 else 0}f}×"


def describe(conditions: Mapping[str, Any]) -> str:
    """The conditions as one sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in conditions.get("versions", {}).items())
    shapes = ", ".join("×".join(map(str, shape)) for shape in conditions.get("shapes", []))
    device = conditions.get("device", {}).get("jax", "cpu")
    torch_threads = conditions.get("threads", {}).get("torch")
    parts = [
        f"inputs {conditions.get('inputs', shapes)}, {conditions.get('dtype', 'unnamed dtype')}",
        f"{conditions.get('cores', '?')} cores of {conditions.get('cpu', 'an unnamed CPU')}",
        f"torch on the CPU, {torch_threads} threads" if torch_threads else "",
        "XLA uses all cores" if device == "cpu" else f"JAX ON ANOTHER DEVICE: {device}",
        versions,
        f"{conditions['rounds']} interleaved rounds: median and interquartile range" if "rounds" in conditions else "",
        conditions.get("date", ""),
        warning(conditions) or "",
    ]
    return " · ".join(part for part in parts if part)


def withheld(conditions: Mapping[str, Any]) -> str | None:
    """Why these times would say nothing about speed, so that no table and no picture shows them, or None."""
    busy = conditions.get("cores_busy_elsewhere") or 0.0
    if busy <= TOO_BUSY:
        return None
    cores = conditions.get("cores", "the")
    return f"Other programs kept {busy:.1f} of {cores} cores busy: times would say nothing about speed."


def warning(conditions: Mapping[str, Any]) -> str | None:
    """What makes these times not worth quoting, if anything does."""
    busy = conditions.get("cores_busy_elsewhere")
    return f"DISTURBED: other processes kept {busy:.1f} cores busy" if busy is not None and busy > BUSY else None
