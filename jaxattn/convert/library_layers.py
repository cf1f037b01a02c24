"""Layers of transformers, torchvision, timm and einops and their twins; none of them is imported here."""

from collections.abc import Callable
from typing import Any

from ..layers import ChannelNorm, GroupNorm, InOutLinear, LayerNorm, OrderedRMSNorm, Rearrange
from .formulas import formula, formula_of
from .framework import group_norm_arguments, layer_norm_arguments
from .registry import Twin, register, register_family

_NORM = """
def _norm(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
"""
_FLOAT32 = """
def forward(self, x):
    dtype = x.dtype
    x = x.to(torch.float32)
    square = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(square + self.eps)
    return {result}
"""
#: Formulas of transformers' RMSNorm classes, as sources of their methods → arguments of the twin beside its sizes.
_RMS_NORMS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((_FLOAT32.format(result="self.weight * x.to(dtype)"),), {"order": "normalise, cast, scale"}),
    (
        (
            """
            def forward(self, x):
                normed = self._norm(x.float()).type_as(x)
                return normed * self.weight
            """,
            _NORM,
        ),
        {"order": "normalise, cast, scale"},
    ),
    ((_FLOAT32.format(result="(self.weight * x).to(dtype)"),), {"order": "normalise, scale, cast"}),
    ((_FLOAT32.format(result="(self.weight.to(torch.float32) * x).to(dtype)"),), {"order": "normalise, scale, cast"}),
    (
        (
            """
            def forward(self, x):
                normed = self._norm(x.float())
                normed = normed * (1.0 + self.weight.float())
                return normed.type_as(x)
            """,
            _NORM,
        ),
        {"order": "normalise, scale, cast", "offset": 1.0},
    ),
    (
        (
            """
            def forward(self, x):
                normed = self._norm(x.float())
                normed = normed * self.weight.float()
                return normed.type_as(x)
            """,
            _NORM,
        ),
        {"order": "normalise, scale, cast"},
    ),
    (
        (
            """
            def forward(self, x):
                normed = self._norm(x.float())
                if self.with_scale:
                    normed = normed * self.weight.float()
                return normed.type_as(x)
            """,
            """
            def _norm(self, x):
                square = x.pow(2).mean(-1, keepdim=True) + self.eps
                return x * torch.pow(square, -0.5)
            """,
        ),
        {"order": "normalise, scale, cast"},
    ),
    (("def forward(self, x):\n    return self._norm(x.float()).type_as(x)", _NORM), {"use_scale": False}),
    (
        (
            """
            def forward(self, x):
                square = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
                x = x * torch.rsqrt(square + self.eps)
                if self.weight.dtype in [torch.float16, torch.bfloat16]:
                    x = x.to(self.weight.dtype)
                return self.weight * x
            """,
        ),
        {"order": "cast to a half scale"},
    ),
]
#: The same for their subclasses of nn.LayerNorm.
_LAYER_NORMS: list[tuple[tuple[str, ...], Callable[[Any], dict[str, Any]]]] = [
    (
        (
            """
            def forward(self, x):
                if self.data_format == 'channels_first':
                    x = x.permute(0, 2, 3, 1)
                    x = super().forward(x)
                    x = x.permute(0, 3, 1, 2)
                else:
                    x = super().forward(x)
                return x
            """,
        ),
        lambda module: {"axis": -3 if module.data_format == "channels_first" else -1},
    ),
    (
        (
            """
            def forward(self, x):
                x = x.permute(0, 2, 1)
                x = nn.LayerNorm.forward(self, x)
                return x.permute(0, 2, 1)
            """,
        ),
        lambda module: {"axis": -2},
    ),
]


def _by_formula(rows: list[tuple[tuple[str, ...], Any]], kind: type) -> Any:
    """What the row of this class's formula says, or None."""
    found = formula_of(kind)
    return next((value for sources, value in rows if formula(*sources) == found), None)


def _rms_norm_of(kind: type) -> Twin | None:
    """By the name of the class and the formula in its source: some classes of such a name compute something else."""
    if not kind.__module__.startswith("transformers.models.") or not kind.__name__.endswith(("RMSNorm", "LayerNorm")):
        return None
    found = _by_formula(_RMS_NORMS, kind)
    if found is None:
        return None

    def configuration(module: Any, build: Any) -> dict[str, Any]:
        del build
        weight = module._parameters.get("weight")
        epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
        features = weight.shape[0] if weight is not None and found.get("use_scale", True) else None
        return {**found, "features": features, "epsilon": epsilon, "use_scale": features is not None}

    return Twin(OrderedRMSNorm, configuration)


def _layer_norm_of(kind: type) -> Twin | None:
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if not kind.__module__.startswith("transformers.models.") or bases[1] != "torch.nn.modules.normalization.LayerNorm":
        return None
    found = _by_formula(_LAYER_NORMS, kind)
    if found is None:
        return None
    return Twin(ChannelNorm, lambda module, build: {**layer_norm_arguments(module, build), **found(module)})


def _channel_norm(**settings: Any) -> Callable[[Any, Any], dict[str, Any]]:
    return lambda module, build: {**layer_norm_arguments(module, build), **settings}


def _in_out_linear(torch_module: Any, build: Any) -> dict[str, Any]:
    del build
    return {"in_features": torch_module.nx, "out_features": torch_module.nf}


def _rearrange(torch_module: Any, build: Any) -> dict[str, Any]:
    del build
    return {"pattern": torch_module.pattern, **torch_module.axes_lengths}


register_family("transformers' RMSNorm classes, by the formula in their source", _rms_norm_of)
register_family("transformers' LayerNorm classes that permute, likewise", _layer_norm_of)
register("transformers.pytorch_utils.Conv1D", configuration=_in_out_linear)(InOutLinear)
register("einops.layers.torch.Rearrange", configuration=_rearrange)(Rearrange)
register("torchvision.models.convnext.LayerNorm2d", configuration=_channel_norm(axis=-3))(ChannelNorm)
register("timm.layers.norm.LayerNorm", configuration=layer_norm_arguments)(LayerNorm)
register("timm.layers.norm.LayerNormFp32", configuration=_channel_norm(keep_dtype=True))(ChannelNorm)
register("timm.layers.norm.LayerNorm2d", configuration=_channel_norm(axis=-3))(ChannelNorm)
register("timm.layers.norm.LayerNorm2dFp32", configuration=_channel_norm(axis=-3, keep_dtype=True))(ChannelNorm)
register("timm.layers.norm.GroupNorm", configuration=group_norm_arguments)(GroupNorm)
register("timm.layers.norm.GroupNorm1", configuration=group_norm_arguments)(GroupNorm)
