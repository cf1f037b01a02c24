"""PyTorch's basic layers and their Flax counterparts: their twins and their rules."""

from flax import nnx

from ..layers import (
    Attend,
    BatchNorm,
    ChannelNorm,
    Conv,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    InOutLinear,
    LayerNorm,
    OrderedRMSNorm,
    RMSNorm,
    Sequential,
    linear,
)
from .registry import class_name, register
from .rules import CONV_KERNEL, COUNT, IDENTITY, TRANSPOSE, Constant, Rule, Transform

#: Flax layer → (Flax name, PyTorch name, transform) of each parameter.
LAYER_RULES: dict[type, tuple[tuple[str, str, Transform], ...]] = {
    BatchNorm: (("num_batches_tracked", "num_batches_tracked", COUNT),),
    ChannelNorm: (("scale", "weight", IDENTITY),),
    InOutLinear: (("kernel", "weight", IDENTITY),),
    nnx.BatchNorm: (
        ("scale", "weight", IDENTITY),
        ("bias", "bias", IDENTITY),
        ("mean", "running_mean", IDENTITY),
        ("var", "running_var", IDENTITY),
    ),
    nnx.Conv: (("kernel", "weight", CONV_KERNEL), ("bias", "bias", IDENTITY)),
    nnx.GroupNorm: (("scale", "weight", IDENTITY), ("bias", "bias", IDENTITY)),
    nnx.Linear: (("kernel", "weight", TRANSPOSE), ("bias", "bias", IDENTITY)),
    nnx.LayerNorm: (("scale", "weight", IDENTITY), ("bias", "bias", IDENTITY)),
    nnx.RMSNorm: (("scale", "weight", IDENTITY),),
    RMSNorm: (("scale", "weight", IDENTITY),),
    OrderedRMSNorm: (("scale", "weight", IDENTITY),),
    nnx.Embed: (("embedding", "weight", IDENTITY),),
}


def layer_rules(layer: nnx.Module) -> dict[str, Rule]:
    """The rules of a Flax layer by parameter name; empty for a class that keeps PyTorch's names."""
    rows = next((LAYER_RULES[kind] for kind in type(layer).__mro__ if kind in LAYER_RULES), ())
    return {name: Rule((source,), name, transform) for name, source, transform in rows}


def layer_constants(layer: nnx.Module) -> tuple[Constant, ...]:
    """What PyTorch's state dict of a Flax layer has beside its parameters."""
    return (Constant("num_batches_tracked", None),) if isinstance(layer, nnx.BatchNorm) else ()


def _linear(torch_module, build):
    del build
    return {
        "in_features": torch_module.in_features,
        "out_features": torch_module.out_features,
        "use_bias": torch_module.bias is not None,
    }


def layer_norm_arguments(torch_module, build):
    del build
    if len(torch_module.normalized_shape) != 1:
        raise NotImplementedError(
            "nn.LayerNorm must normalise the last axis alone, got "
            f"normalized_shape={tuple(torch_module.normalized_shape)}."
        )
    return {
        "features": torch_module.normalized_shape[0],
        "epsilon": torch_module.eps,
        "use_scale": torch_module.weight is not None,
        "use_bias": torch_module.bias is not None,
    }


def _rms_norm(torch_module, build):
    del build
    return {
        "features": tuple(torch_module.normalized_shape),
        "epsilon": torch_module.eps,
        "use_scale": torch_module.weight is not None,
    }


def _embedding(torch_module, build):
    del build
    return {
        "num_embeddings": torch_module.num_embeddings,
        "features": torch_module.embedding_dim,
        "padding_idx": torch_module.padding_idx,
    }


def _conv(torch_module, build):
    del build
    padding = torch_module.padding
    return {
        "in_channels": torch_module.in_channels,
        "out_channels": torch_module.out_channels,
        "kernel_size": tuple(torch_module.kernel_size),
        "stride": tuple(torch_module.stride),
        "padding": padding if isinstance(padding, str) else tuple(padding),
        "dilation": tuple(torch_module.dilation),
        "groups": torch_module.groups,
        "padding_mode": torch_module.padding_mode,
        "use_bias": torch_module.bias is not None,
    }


def _batch_norm(torch_module, build):
    del build
    held = [torch_module.running_mean, torch_module.running_var, torch_module.num_batches_tracked]
    tracks = [buffer is not None for buffer in held]
    if set(tracks) != {bool(torch_module.track_running_stats)} or torch_module.affine != (
        torch_module.weight is not None and torch_module.bias is not None
    ):
        raise NotImplementedError(
            "batch norm must hold running_mean, running_var and num_batches_tracked if and only if "
            f"track_running_stats is set, and weight and bias if and only if it is affine, got "
            f"track_running_stats={torch_module.track_running_stats}, affine={torch_module.affine}: make the module "
            "with the settings that it computes with."
        )
    return {
        "num_features": torch_module.num_features,
        "epsilon": torch_module.eps,
        "momentum": torch_module.momentum,
        "affine": torch_module.affine,
        "track_running_stats": torch_module.track_running_stats,
    }


def group_norm_arguments(torch_module, build):
    del build
    return {
        "num_groups": torch_module.num_groups,
        "num_channels": torch_module.num_channels,
        "epsilon": torch_module.eps,
        "affine": torch_module.weight is not None,
    }


def _sequential(torch_module, build):
    names, children = list(torch_module._modules), list(torch_module)
    embeddings = {
        id(child.weight): place
        for place, child in enumerate(children)
        if class_name(child) == "torch.nn.modules.sparse.Embedding"
    }
    layers = []
    for child in children:
        linear_class = class_name(child) == "torch.nn.modules.linear.Linear"
        tied = linear_class and child.bias is None and id(child.weight) in embeddings
        layers.append(Attend(embeddings[id(child.weight)]) if tied else build(child))
    return {"layers": layers, "names": names}


register("torch.nn.modules.linear.Linear", configuration=_linear)(linear)
register("torch.nn.modules.linear.NonDynamicallyQuantizableLinear", configuration=_linear)(linear)
register("torch.nn.modules.normalization.LayerNorm", configuration=layer_norm_arguments)(LayerNorm)
register("torch.nn.modules.normalization.RMSNorm", configuration=_rms_norm)(RMSNorm)
register("torch.nn.modules.sparse.Embedding", configuration=_embedding)(Embedding)
register("torch.nn.modules.dropout.Dropout", configuration=lambda module, build: {"rate": module.p})(Dropout)
register("torch.nn.modules.normalization.GroupNorm", configuration=group_norm_arguments)(GroupNorm)
register("torch.nn.modules.flatten.Flatten")(Flatten)
register("torch.nn.modules.container.Sequential", configuration=_sequential)(Sequential)
for _axes in (1, 2, 3):
    register(f"torch.nn.modules.conv.Conv{_axes}d", configuration=_conv)(Conv)
    register(f"torch.nn.modules.batchnorm.BatchNorm{_axes}d", configuration=_batch_norm)(BatchNorm)
