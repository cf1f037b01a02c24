"""README's table of what each library does."""

from .render import Data, markdown

CAPTION = (
    "✓ as expected; ✗ with what came instead; refused: it raises an error; –: no argument for it. Tiny calls "
    "whose results are known by hand; every argument goes to the library's own as it is. jax.nn, flax.nnx: "
    "`dot_product_attention` with its defaults. equinox: `nn.MultiheadAttention` with identity projections. keras: "
    "`ops.dot_product_attention`, and `layers.MultiHeadAttention` for weights, dropout and windows."
)


def render_conformance(data: Data) -> str:
    """One row a check, one column a target."""
    checks: dict[str, dict[str, Data]] = {}
    for result in data["results"]:
        checks.setdefault(result["check"], {})[result["target"]] = result
    targets = list(dict.fromkeys(result["target"] for result in data["results"]))
    table = []
    for answers in checks.values():
        first = next(iter(answers.values()))
        table.append([first["question"], first["expected"], *(_cell(answers[target]) for target in targets)])
    left_out = "".join(f" Left out: {reason}" for reason in data["left_out"].values())
    return markdown(["what is asked", "expected", *targets], table, CAPTION + left_out, data)


def _cell(result: Data) -> str:
    signs = {"pass": "✓", "differs": "✗", "refused": "refused", "not offered": "–"}
    came = result["came"] if result["verdict"] in ("pass", "differs") else ""
    return f"{signs[result['verdict']]} {came}".strip()
