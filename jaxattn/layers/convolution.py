"""torch.nn.Conv1d, Conv2d and Conv3d."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_choice, check_floating, check_sizes, check_whole, shape_text
from .._typing import ArrayLike, DType, Precision
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array
from .linear import parameter, torch_bias_init

#: torch's padding modes → those of jnp.pad; "zeros" is the convolution's own.
_PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class Conv(nnx.Module):
    """Correlation of [B, in, *spatial] with kernels [out, in / groups, *kernel_size], plus a bias, in torch's layout.

    Args:
        in_channels: of the inputs.
        out_channels: of the outputs.
        kernel_size: one size for each spatial axis.
        stride: for each axis.
        padding: on both sides of each axis, or "same" (for strides of 1; an odd place more at the end) or "valid".
        dilation: distance of a kernel's elements, for each axis.
        groups: channels are split into as many parts that don't see one another.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        use_bias: whether there is a bias.
        dtype: of the computation; None promotes inputs and parameters.
        param_dtype: of kernels and bias.
        precision: of the products.
        rngs: draws both from ±1/√fan_in, as torch.

    Raises:
        TypeError: a size that is no integer.
        ValueError: channels that `groups` doesn't divide, "same" with strides, tuples of other lengths.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] | None = None,
        padding: Sequence[int] | str = "valid",
        dilation: Sequence[int] | None = None,
        groups: int = 1,
        padding_mode: str = "zeros",
        use_bias: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        precision: Precision = None,
        rngs: nnx.Rngs,
    ):
        self.kernel_size = tuple(kernel_size)
        ones = (1,) * len(self.kernel_size)
        self.stride = ones if stride is None else tuple(stride)
        self.dilation = ones if dilation is None else tuple(dilation)
        check_sizes(in_channels=in_channels, out_channels=out_channels, groups=groups)
        for name in ("kernel_size", "stride", "dilation"):
            _check_each(name, getattr(self, name), len(ones), least=1)
        check_choice("padding_mode", padding_mode, list(_PADDING_MODES))
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"`groups` must divide the channels, got groups={groups}, in_channels={in_channels}, "
                f"out_channels={out_channels}."
            )
        self.padding = _each_side(padding, self.kernel_size, self.stride, self.dilation)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.padding_mode, self.dtype, self.precision = padding_mode, dtype, precision
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        init = torch_bias_init(math.prod(shape[1:]))
        self.weight = parameter(init, shape, param_dtype=param_dtype, rngs=rngs)
        self.bias = parameter(init, (out_channels,), param_dtype=param_dtype, rngs=rngs) if use_bias else None

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [B, in, *spatial] or [in, *spatial] → [B, out, *spatial] or [out, *spatial].

        Raises:
            ValueError: another rank or number of channels; a padding that its mode can't take from the inputs.
        """
        inputs = as_array(inputs)
        check_floating("inputs", inputs)
        spatial = len(self.kernel_size)
        if inputs.ndim not in (spatial + 1, spatial + 2) or inputs.shape[-spatial - 1] != self.in_channels:
            raise ValueError(
                f"`inputs` must be [B, {self.in_channels}, *spatial] or [{self.in_channels}, *spatial] with {spatial} "
                f"spatial axes, got shape {shape_text(inputs.shape)}."
            )
        weight = self.weight[...]
        dtype = self.dtype or jnp.result_type(inputs, weight)
        x = inputs.astype(dtype).reshape((-1, *inputs.shape[-spatial - 1 :]))
        padding = self.padding
        if self.padding_mode != "zeros":
            _check_padding(self.padding_mode, padding, x.shape[2:])
            x = jnp.pad(x, [(0, 0), (0, 0), *padding], mode=_PADDING_MODES[self.padding_mode])
            padding = ((0, 0),) * spatial
        axes = "NC" + "DHW"[-spatial:]
        outputs = jax.lax.conv_general_dilated(
            x,
            weight.astype(dtype),
            self.stride,
            padding,
            rhs_dilation=self.dilation,
            dimension_numbers=(axes, "OI" + axes[2:], axes),
            feature_group_count=self.groups,
            precision=self.precision,
        )
        if self.bias is not None:
            # In float32 at least, so that the gradient of the bias is summed there.
            wide = at_least_float32(dtype)
            bias = self.bias[...].astype(wide).reshape(1, -1, *(1,) * spatial)
            outputs = (outputs.astype(wide) + bias).astype(dtype)
        return outputs.reshape((*inputs.shape[: -spatial - 1], *outputs.shape[1:]))


def _check_each(name: str, values: Sequence[int], spatial: int, *, least: int) -> None:
    if len(values) != spatial or spatial not in (1, 2, 3):
        raise ValueError(f"`{name}` must hold one size for each of 1 to 3 spatial axes, got {tuple(values)}.")
    for value in values:
        check_whole(name, value, least=least)


def _each_side(
    padding: Sequence[int] | str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """(before, after) of each spatial axis."""
    if not isinstance(padding, str):
        _check_each("padding", tuple(padding), len(kernel), least=0)
        return tuple((size, size) for size in padding)
    check_choice("padding", padding, ["same", "valid"])
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if any(step != 1 for step in stride):
        raise ValueError(f"`padding='same'` must go with strides of 1, got stride={tuple(stride)}.")
    totals = [distance * (size - 1) for size, distance in zip(kernel, dilation, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def _check_padding(mode: str, padding: Sequence[tuple[int, int]], sizes: Sequence[int]) -> None:
    """What jnp.pad would reflect or repeat more than once, which torch refuses."""
    most = {"reflect": lambda size: size - 1, "circular": lambda size: size}.get(mode)
    if most and any(max(sides) > most(size) for sides, size in zip(padding, sizes, strict=True)):
        raise ValueError(
            f"Padding by {mode!r} must take no more than the inputs have, got padding {tuple(padding)} for spatial "
            f"axes {shape_text(sizes)}."
        )
