"""equinox.nn.MultiheadAttention with the identity as its projections, as its operation isn't public."""

from typing import Any

import jax
import jax.numpy as jnp

from ..target import Answer, NotOffered, Request, offer


class EquinoxNn:
    """Equinox's module, which takes one example; `jax.vmap` batches it, as its documentation has it.

    Raises:
        ImportError: Equinox is not installed.
    """

    name = "equinox"

    def __init__(self) -> None:
        try:
            import equinox  # pyright: ignore[reportMissingImports] -- an optional peer
        except ImportError as error:
            raise ImportError('the target equinox needs Equinox: pip install "jaxattn[bench]".') from error
        self._equinox = equinox

    def attend(self, request: Request) -> Answer:
        offer(request, "mask", "dropout_rate")
        if request.k.shape[-2] != request.q.shape[-2]:
            raise NotOffered("no grouped heads")
        module, batch = self._module(request), request.q.shape[:-3]
        arrays = [array.reshape(*array.shape[:-2], -1) for array in (request.q, request.k, request.v)]
        if request.mask is not None:
            (length_q, heads, _), length_kv = request.q.shape[-3:], request.k.shape[-3]
            arrays.append(jnp.broadcast_to(request.mask, (*batch, heads, length_q, length_kv)))

        def call(seed: jax.Array, *given: Any) -> jax.Array:
            return module(*given, key=seed)

        for _ in batch:
            call = jax.vmap(call)
        output = call(jax.random.split(jax.random.key(request.seed), batch), *arrays)
        return Answer(output.reshape(*request.q.shape[:-1], -1))

    def _module(self, request: Request) -> Any:
        heads, width, value_width = request.q.shape[-2], request.q.shape[-1], request.v.shape[-1]
        module = self._equinox.nn.MultiheadAttention(
            heads,
            heads * width,
            value_size=heads * value_width,
            output_size=heads * value_width,
            qk_size=width,
            vo_size=value_width,
            dropout_p=request.dropout_rate,
            dtype=request.q.dtype,
            key=jax.random.key(0),
        )
        names = ("query_proj", "key_proj", "value_proj", "output_proj")
        eyes = [jnp.eye(len(getattr(module, name).weight), dtype=request.q.dtype) for name in names]
        return self._equinox.tree_at(lambda m: [getattr(m, name).weight for name in names], module, eyes)
