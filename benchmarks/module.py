"""Every module against its PyTorch counterpart, at one documented size."""

from typing import Any

from jaxattn.cli.bench import example_pair
from jaxattn.cli.variants import VARIANTS
from jaxattn.timing import ParityFailure, bench_pair

from .conditions import FULL, QUICK, announce, compact, options, print_report, write
from .module_peers import measure_peers, print_peers

NAMES = (
    "my_attn",
    "scaled_dot_product",
    "multi_head",
    "multi_head_cross",
    "sinusoidal",
    "multihead_torch",
    "encoder_layer",
    "encoder",
)
#: Where a module has them; MyAttn keeps its classic sizes.
SIZES = {"batch": 8, "length": 128, "embed_dim": 256, "num_heads": 8, "dim_feedforward": 1024, "num_layers": 2}
TINY = {"batch": 2, "length": 16, "embed_dim": 32, "num_heads": 4, "dim_feedforward": 64, "num_layers": 2}


def main(argv: list[str]) -> int:
    """0, or 1 if a module fails its parity check: then nothing is written."""
    given = options("module", __doc__, argv)
    results = []
    for name in NAMES:
        announce(f"{name} …")
        try:
            results.append(measure(name, quick=given.quick))
        except ParityFailure as failure:
            announce(f"{failure}\n{failure.report}")
            return 1
        print_report(results[-1]["label"], results[-1])
    sizes = TINY if given.quick else SIZES
    announce("attention of other libraries …")
    try:
        peers = measure_peers(sizes, QUICK if given.quick else FULL)
    except ParityFailure as failure:
        announce(f"{failure} {failure.report}")
        return 1
    print_peers(peers)
    inputs = f"batch {sizes['batch']}, length {sizes['length']}, width {sizes['embed_dim']}, {sizes['num_heads']} heads"
    title = "Flax modules against PyTorch"
    facts = {"title": title, "inputs": f"{inputs} (MyAttn: classic sizes)", "dtype": "float32"}
    write("module", results, given, {"peers": peers}, **facts)
    return 0


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """The compact report of one variant.

    Raises:
        ParityFailure: the two sides differ.
    """
    variant, wanted = VARIANTS[name], TINY if quick else SIZES
    sizes = variant.sizes(**{size: wanted[size] for size in variant.size_names if size in wanted})
    pair = example_pair(variant, wanted["batch"], wanted["length"], wanted["length"], "float32", 0, sizes)
    report = bench_pair(*pair, **(QUICK if quick else FULL))
    counterpart = variant.torch_class.replace(":", ".")
    return {"label": report.module, "variant": name, "counterpart": counterpart, "sizes": sizes, **compact(report)}
