"""torch.nn's layers that have a twin, with the shapes of their inputs: the table that tests walk."""

from typing import Any

from torch import nn

B, C, L, H, W = 3, 6, 7, 5, 4

#: On one axis of C features, or on any shape.
ACTIVATIONS: dict[str, nn.Module] = {
    "celu": nn.CELU(0.5),  # torch's gradient takes 1 / alpha in float32: a power of two
    "elu": nn.ELU(0.6),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "glu": nn.GLU(),
    "hardshrink": nn.Hardshrink(1.5),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardswish": nn.Hardswish(),
    "hardtanh": nn.Hardtanh(-0.5, 2.0),
    "identity": nn.Identity(C, unused=1),
    "leaky_relu": nn.LeakyReLU(0.2, inplace=False),
    "log_softmax": nn.LogSoftmax(0),
    "logsigmoid": nn.LogSigmoid(),
    "mish": nn.Mish(),
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "rrelu": nn.RReLU(0.25, 0.5),
    "selu": nn.SELU(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "softmax": nn.Softmax(1),
    "softmin": nn.Softmin(-1),
    "softplus": nn.Softplus(2.0, 3.0),
    "softshrink": nn.Softshrink(1.5),
    "softsign": nn.Softsign(),
    "tanh": nn.Tanh(),
    "tanhshrink": nn.Tanhshrink(),
    "threshold": nn.Threshold(-0.5, 2.5),
}
#: name → (module, shape of its inputs).
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{name: (module, (H, C)) for name, module in ACTIVATIONS.items()},
    "batch_norm_1d": (nn.BatchNorm1d(C, 0.1), (B, C)),
    "batch_norm_1d_length": (nn.BatchNorm1d(C, affine=False), (B, C, L)),
    "batch_norm_2d": (nn.BatchNorm2d(C, momentum=None), (B, C, H, W)),
    "batch_norm_3d": (nn.BatchNorm3d(C), (B, C, 2, 1, W)),
    "batch_norm_untracked": (nn.BatchNorm2d(C, track_running_stats=False), (B, C, H, W)),
    "conv1d": (nn.Conv1d(C, 5, 3, stride=2, padding=1), (B, C, L)),
    "conv1d_circular": (nn.Conv1d(C, 4, 5, padding=2, padding_mode="circular", bias=False), (B, C, L)),
    "conv1d_same": (nn.Conv1d(C, 5, 3, padding="same", dilation=2, padding_mode="reflect"), (B, C, L)),
    "conv1d_unbatched": (nn.Conv1d(C, 5, 3, padding="valid"), (C, L)),
    "conv2d": (nn.Conv2d(C, 8, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2), (B, C, H, W)),
    "conv2d_depthwise": (nn.Conv2d(C, 2 * C, 3, groups=C, padding="same"), (B, C, H, W)),
    "conv2d_same_even": (nn.Conv2d(C, 5, (2, 4), padding="same", dilation=(1, 2)), (B, C, H, W)),
    "conv2d_replicate": (nn.Conv2d(C, 5, (3, 1), padding=(7, 2), padding_mode="replicate"), (B, C, H, W)),
    "conv2d_unbatched": (nn.Conv2d(C, 5, 2, padding=1, padding_mode="reflect"), (C, H, W)),
    "conv3d": (nn.Conv3d(2, 3, (1, 2, 3)), (B, 2, 2, 3, W)),
    "dropout": (nn.Dropout(0.3), (H, C)),
    "flatten": (nn.Flatten(), (B, C, H, W)),
    "flatten_middle": (nn.Flatten(-3, 2), (B, C, H, W)),
    "flatten_scalar": (nn.Flatten(0), ()),
    "glu_channels": (nn.GLU(1), (B, C, L)),
    "group_norm": (nn.GroupNorm(3, C, 0.1), (B, C, H, W)),
    "group_norm_plain": (nn.GroupNorm(2, C, affine=False), (B, C)),
    "layer_norm": (nn.LayerNorm(C, 0.1), (H, C)),
    "layer_norm_plain": (nn.LayerNorm(C, elementwise_affine=False), (H, C)),
    "layer_norm_no_bias": (nn.LayerNorm(C, bias=False), (H, C)),
    "linear": (nn.Linear(C, 5), (H, C)),
    "linear_square": (nn.Linear(C, C, bias=False), (H, C)),
    "prelu": (nn.PReLU(), (H, C)),
    "prelu_channels": (nn.PReLU(C), (3, C, 5)),
    "prelu_scalar": (nn.PReLU(), ()),
    "rms_norm": (nn.RMSNorm(C, 0.01), (H, C)),
    "rms_norm_default": (nn.RMSNorm(C), (H, C)),
    "rms_norm_axes": (nn.RMSNorm([C, 5]), (3, C, 5)),
    "rms_norm_plain": (nn.RMSNorm(C, elementwise_affine=False), (H, C)),
    "softmax2d": (nn.Softmax2d(), (B, C, H, W)),
    "softmax2d_unbatched": (nn.Softmax2d(), (C, H, W)),
}
