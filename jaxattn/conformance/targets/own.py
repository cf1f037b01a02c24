"""jaxattn.dot_product_attention, under jit: eager, most of the time would go to compiling its parts."""

import functools
import operator

import jax

from ...core import masks
from ...core.dot_product import dot_product_attention
from ..target import Answer, Request

_attend = jax.jit(dot_product_attention, static_argnames=("dropout_rate", "return_weights"))


class Jaxattn:
    """This package's operation; causal, window and lengths are masks."""

    name = "jaxattn"

    def attend(self, request: Request) -> Answer:
        rules = [] if request.mask is None else [request.mask]
        if request.causal:
            rules.append(masks.causal())
        if request.window is not None:
            rules.append(masks.sliding_window(*request.window))
        if request.lengths is not None:
            rules.append(masks.padding(request.lengths))
        mask = rules[0] if len(rules) == 1 else None
        if len(rules) > 1:
            values = [rule if isinstance(rule, masks.Mask) else masks.from_array(rule) for rule in rules]
            mask = functools.reduce(operator.and_, values)
        output, weights = _attend(
            request.q,
            request.k,
            request.v,
            mask=mask,
            bias=request.bias,
            scale=request.scale,
            dropout_rate=request.dropout_rate,
            dropout_rng=jax.random.key(request.seed),
            return_weights=request.weights,
        )
        return Answer(output, weights)
