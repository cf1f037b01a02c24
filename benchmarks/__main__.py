"""`python -m benchmarks SUITE [--quick] [--out DIR]`; without a suite, the list of them."""

import importlib
import sys

SUITES = {
    "op": "the attention operation, forward, over a fixed grid: ours, torch, jax.nn and others",
    "op_grad": "the same with its gradients",
    "sweep": "block sizes of the blockwise implementation over the grid: where tuning.py's numbers come from",
    "module": "every module: parity, float32 error, jit against eager Flax and eager torch",
    "minilm": "the real all-MiniLM-L6-v2, batch 1 and 8, length 32 and 128",
    "encoder": "a ported nn.TransformerEncoder of 12 layers: porting, jaxattn.compile, torch eager, torch.compile",
    "memory": "memory of the attention operation over the length, as XLA plans it",
    "overhead": "what a call of a small deep model costs beside its arithmetic",
    "conformance": "what attention means in each library: masks, empty rows, alignment, dtypes, dropout",
    "device": "on an accelerator: proof and times of the implementations there",
    "load": "reading and converting a large checkpoint: time and peak memory",
    "table": "rewrite the tables of README.md from the results; --check only compares",
}


def main(argv: list[str]) -> int:
    """The exit code of the suite: 0 ok, 1 failed, 2 usage."""
    if argv and argv[0] in SUITES:
        return importlib.import_module(f"{__package__}.{argv[0]}").main(argv[1:]) or 0
    listed = "\n".join(f"  {name:12}{summary}" for name, summary in SUITES.items())
    text = f"usage: python -m benchmarks SUITE [--quick] [--out DIR]\n\nsuites:\n{listed}"
    wrong = [argument for argument in argv if argument not in ("-h", "--help")]
    print(f"unknown suite {wrong[0]!r}\n{text}" if wrong else text, file=sys.stderr if wrong else sys.stdout)
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
