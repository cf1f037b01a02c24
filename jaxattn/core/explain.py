"""Which implementation a call would take, and why it takes none of the others."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._checks import check_choice
from .._typing import ArrayLike, EmptyRow, Precision
from .dispatch import IMPLEMENTATIONS, facts_for, select
from .dot_product import WeightsFor, prepare
from .facts import Facts, device_of


@dataclass(frozen=True)
class Explanation:
    """The choice for one call; printed, a line for each implementation.

    Attributes:
        chosen: the implementation that computes the call.
        backend: the device that it runs on, "cpu", "gpu" or "tpu".
        refused: the other implementations, and why it is none of them.
    """

    chosen: str
    backend: str
    refused: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.chosen} on the {self.backend.upper()}"]
        return "\n".join([*lines, *(f"  not {name}: {reason}" for name, reason in self.refused.items())])


def explain_dispatch(
    q: ArrayLike | jax.ShapeDtypeStruct,
    k: ArrayLike | jax.ShapeDtypeStruct,
    v: ArrayLike | jax.ShapeDtypeStruct,
    *,
    mask: Any = None,
    bias: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    soft_cap: float | None = None,
    score_mod: Any = None,
    empty_row: EmptyRow = "zero",
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    dropout_mask: ArrayLike | None = None,
    return_weights: bool = False,
    weights_for: WeightsFor | None = None,
    implementation: str = "auto",
    precision: Precision = None,
) -> Explanation:
    """Which implementation `dot_product_attention` takes for these arguments, and why none of the others.

    Nothing is computed. The choice depends on the device, on shapes, dtypes and options; on no value, and not on
    whether weights are asked for.

    Args:
        q: as for dot_product_attention, or a jax.ShapeDtypeStruct; so are k and v.
        k: keys.
        v: values.
        mask: as for dot_product_attention, and so are all others.
        bias: added to the logits.
        scale: factor of the logits.
        soft_cap: bound of the logits.
        score_mod: function of the logits.
        empty_row: output of a query with nothing to attend.
        dropout_rate: share of the weights that is dropped.
        dropout_rng: key that draws them.
        dropout_mask: those that are kept.
        return_weights: of no influence.
        weights_for: of no influence.
        implementation: "auto", or the one that is asked for.
        precision: of the matrix products.

    Returns:
        An Explanation; print it.

    Raises:
        ValueError: as dot_product_attention.
        TypeError: as dot_product_attention.
        NotImplementedError: an implementation that is asked for and cannot compute the call.
    """
    del return_weights, weights_for
    check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    found: list[Facts] = []

    def look(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
        problem = prepare(
            q, k, v, mask=mask, bias=bias, scale=scale, soft_cap=soft_cap, score_mod=score_mod, empty_row=empty_row,
            dropout_rate=dropout_rate, dropout_rng=dropout_rng, dropout_mask=dropout_mask, precision=precision,
        )  # fmt: skip
        found.append(facts_for(problem, device))

    device = device_of(q)
    jax.eval_shape(look, *(array if hasattr(array, "shape") else jnp.asarray(array) for array in (q, k, v)))
    chosen, refused = select(found[0], implementation)
    return Explanation(chosen, found[0].backend, refused)
