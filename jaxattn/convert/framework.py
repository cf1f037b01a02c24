"""PyTorch's basic layers and their Flax counterparts: their twins and their rules."""

import jax.numpy as jnp
from flax import nnx

from ..layers import layer_norm, linear
from .registry import register
from .rules import IDENTITY, TRANSPOSE, Rule, Transform

#: Flax layer → (Flax name, PyTorch name, transform) of each parameter.
LAYER_RULES: dict[type, tuple[tuple[str, str, Transform], ...]] = {
    nnx.Linear: (("kernel", "weight", TRANSPOSE), ("bias", "bias", IDENTITY)),
    nnx.LayerNorm: (("scale", "weight", IDENTITY), ("bias", "bias", IDENTITY)),
    nnx.RMSNorm: (("scale", "weight", IDENTITY),),
    nnx.Embed: (("embedding", "weight", IDENTITY),),
}


def layer_rules(layer: nnx.Module) -> dict[str, Rule]:
    """The rules of a Flax layer by parameter name; empty for a class that keeps PyTorch's names."""
    rows = next((LAYER_RULES[kind] for kind in type(layer).__mro__ if kind in LAYER_RULES), ())
    return {name: Rule((source,), name, transform) for name, source, transform in rows}


def _linear(torch_module, build):
    del build
    return {
        "in_features": torch_module.in_features,
        "out_features": torch_module.out_features,
        "use_bias": torch_module.bias is not None,
    }


def _layer_norm(torch_module, build):
    del build
    if len(torch_module.normalized_shape) != 1 or torch_module.weight is None:
        raise NotImplementedError(
            "nn.LayerNorm must normalise the last axis and have a weight, got "
            f"normalized_shape={tuple(torch_module.normalized_shape)}, "
            f"elementwise_affine={torch_module.elementwise_affine}."
        )
    return {
        "features": torch_module.normalized_shape[0],
        "epsilon": torch_module.eps,
        "use_bias": torch_module.bias is not None,
    }


register("torch.nn.modules.linear.Linear", configuration=_linear)(linear)
register("torch.nn.modules.linear.NonDynamicallyQuantizableLinear", configuration=_linear)(linear)
register("torch.nn.modules.normalization.LayerNorm", configuration=_layer_norm)(layer_norm)


@register(
    "torch.nn.modules.sparse.Embedding",
    configuration=lambda module, build: {"num_embeddings": module.num_embeddings, "features": module.embedding_dim},
)
def embedding(num_embeddings: int, features: int, *, dtype=None, param_dtype=jnp.float32, rngs: nnx.Rngs) -> nnx.Embed:
    """nnx.Embed, drawn from N(0, 1) as torch.nn.Embedding."""
    init = nnx.initializers.normal(1.0)
    return nnx.Embed(num_embeddings, features, dtype=dtype, param_dtype=param_dtype, embedding_init=init, rngs=rngs)
