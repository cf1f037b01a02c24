"""jax.nn.dot_product_attention."""

import jax

from ..target import Answer, Request, offer


class JaxNn:
    """JAX's operation, on the implementation that it picks."""

    name = "jax.nn"

    def attend(self, request: Request) -> Answer:
        offer(request, "mask", "bias", "causal", "window", "lengths", "scale")
        return Answer(
            jax.nn.dot_product_attention(
                request.q,
                request.k,
                request.v,
                bias=request.bias,
                mask=request.mask,
                scale=request.scale,
                is_causal=request.causal,
                key_value_seq_lengths=request.lengths,
                local_window_size=request.window,
            )
        )
