"""keras.ops.dot_product_attention; keras.layers.MultiHeadAttention for what only the layer offers."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..target import Answer, NotOffered, Request, offer


class KerasOps:
    """Keras' operation, on JAX. Weights, dropout and windows are the layer's, with the identity as its projections.

    Raises:
        ImportError: Keras is not installed, or runs on another backend.
    """

    name = "keras"

    def __init__(self) -> None:
        os.environ.setdefault("KERAS_BACKEND", "jax")
        try:
            import keras  # pyright: ignore[reportMissingImports] -- an optional peer
        except ImportError as error:
            raise ImportError('the target keras needs Keras: pip install "jaxattn[bench]".') from error
        if keras.backend.backend() != "jax":
            raise ImportError(f"the target keras needs KERAS_BACKEND=jax, got {keras.backend.backend()}.")
        self._keras = keras

    def attend(self, request: Request) -> Answer:
        if request.weights or request.dropout_rate or request.window is not None:
            return self._layer(request)
        offer(request, "mask", "bias", "causal", "scale")
        with _quiet():
            output = self._keras.ops.dot_product_attention(
                request.q,
                request.k,
                request.v,
                bias=request.bias,
                mask=request.mask,
                scale=request.scale,
                is_causal=request.causal,
            )
        return Answer(output)

    def _layer(self, request: Request) -> Answer:
        offer(request, "mask", "causal", "window", "dropout_rate", "weights")
        if request.k.shape[-2] != request.q.shape[-2]:
            raise NotOffered("no grouped heads")
        queries, keys, values = (_joined(array) for array in (request.q, request.k, request.v))
        returned = self._make(request)(
            queries,
            values,
            keys,
            attention_mask=request.mask,
            return_attention_scores=request.weights,
            training=request.dropout_rate > 0.0,
            use_causal_mask=request.causal,
        )
        output, weights = returned if request.weights else (returned, None)
        return Answer(output.reshape(*request.q.shape[:-1], -1), weights)

    def _make(self, request: Request) -> Any:
        window = request.window
        if window is not None and window[0] != window[1]:
            raise NotOffered("no window with two sides")
        heads, width, value_width = request.q.shape[-2], request.q.shape[-1], request.v.shape[-1]
        layer = self._keras.layers.MultiHeadAttention(
            heads,
            width,
            value_dim=value_width,
            output_shape=heads * value_width,
            use_bias=False,
            dropout=request.dropout_rate,
            sliding_window=None if window is None else window[0] + 1,  # it counts the query itself
            dtype=str(request.q.dtype),
            seed=request.seed,
        )
        shapes = (_joined(array).shape for array in (request.q, request.v, request.k))
        layer.build(*shapes)
        features = (heads * width, heads * width, heads * value_width, heads * value_width)
        eyes = [np.eye(size).reshape(kernel.shape) for size, kernel in zip(features, layer.weights[:4], strict=True)]
        layer.set_weights([*eyes, *layer.get_weights()[4:]])
        return layer


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the traceback that Keras logs where jax.nn refuses a call, before it tries its own operation."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _joined(array: Any) -> Any:
    return array.reshape(*array.shape[:-2], -1)
