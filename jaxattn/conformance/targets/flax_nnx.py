"""flax.nnx.dot_product_attention, with the defaults of its arguments."""

from typing import Any

import jax
from flax import nnx

from ..target import Answer, Request, offer


class FlaxNnx:
    """Flax's operation; the weights are those that it sows into a module."""

    name = "flax.nnx"

    def attend(self, request: Request) -> Answer:
        offer(request, "mask", "bias", "causal", "dropout_rate", "weights")
        if not request.weights:
            return Answer(_attend(None, request))
        call: Any = nnx.capture(nnx.Intermediate)
        output, sown = call(_attend)(nnx.Module(), request)
        return Answer(output, sown["attention_weights"].get_value()[0])


def _attend(module: nnx.Module | None, request: Request) -> jax.Array:
    return nnx.dot_product_attention(
        request.q,
        request.k,
        request.v,
        bias=request.bias,
        mask=request.mask,
        dropout_rng=jax.random.key(request.seed),
        dropout_rate=request.dropout_rate,
        is_causal=request.causal,
        module=module,
    )
