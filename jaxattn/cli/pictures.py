"""The pictures that `jaxattn demo` leaves."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..capture import capture
from ..convert.files import read_checkpoint
from ..interleaved import BenchReport
from .loading import Wanted, load
from .variants import VARIANTS

SENTENCE = "He ate an apple".split()


def draw_speed(reports: Iterable[BenchReport], conditions: dict[str, Any], path: Path) -> None:
    """Every candidate of every module."""
    from ..plots.speed import plot_speed

    groups = {report.module: report.modes[0].to_json()["timings"] for report in reports}
    plot_speed(
        groups,
        path,
        title="Flax against PyTorch with random weights: calls with all their results",
        conditions=conditions,
    )


def draw_attention(converted: Path, path: Path) -> None:
    """The first layer's weights of a converted encoder, on random words."""
    from ..plots.heatmap import attention_heatmap

    encoder = load(read_checkpoint(converted), Wanted()).module
    (words,) = VARIANTS["encoder"].inputs(np.random.default_rng(1), None, len(SENTENCE), 0)
    weights = jax.jit(lambda module, x: capture(module, x)[1]["layers.0.self_attn:weights"])(encoder, words)
    attention_heatmap(
        weights,
        query_labels=SENTENCE,
        key_labels=SENTENCE,
        title="TransformerEncoder with random weights: layer 0",
        path=path,
    )
