"""torch.nn.BatchNorm1d, BatchNorm2d and BatchNorm3d."""

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_channels, check_sizes, shape_text
from .._typing import ArrayLike, DType
from ..core.dtypes import at_least_float32
from ..core.mask_arrays import as_array


class BatchNorm(nnx.Module):
    """weight · (x − mean) / √(variance + epsilon) + bias for each channel, over the batch and all places.

    A call computes with the running statistics and changes nothing, which is torch's evaluation mode; the call with
    `deterministic=False` is its training mode: it computes with the statistics of this batch (the biased variance) and
    writes the running ones (with the unbiased variance) to the module. Those are nnx.BatchStat, not nnx.Param: no
    gradient and no optimizer reaches them, and a state dict holds them. Where JAX works on a copy, as in jax.jit and
    jax.grad, the new statistics are the copy's: return it, or use nnx.jit and nnx.grad, which hand them back.

    Args:
        num_features: C, the channels on axis 1.
        epsilon: added to the variance.
        momentum: weight of the new value (Flax's is that of the old one); None is the plain average over all batches.
        affine: whether there are weight and bias.
        track_running_stats: False computes with the batch's statistics in both modes.
        dtype: of the result; None promotes inputs and weight.
        param_dtype: of weight, bias and running statistics.
        rngs: without effect, the scale starts at 1.

    Reference: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: DType = None,
        param_dtype: DType = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        del rngs
        check_sizes(num_features=num_features, least=0)
        self.num_features, self.epsilon, self.momentum, self.dtype = num_features, epsilon, momentum, dtype
        ones, zeros = jnp.ones(num_features, param_dtype), jnp.zeros(num_features, param_dtype)
        self.weight = nnx.Param(ones) if affine else None
        self.bias = nnx.Param(zeros) if affine else None
        self.running_mean = nnx.BatchStat(zeros) if track_running_stats else None
        self.running_var = nnx.BatchStat(ones) if track_running_stats else None
        # A floating number, exact up to 2²⁴ batches, where it stays: jax.grad takes no module with integers in it.
        self.num_batches_tracked = nnx.BatchStat(jnp.zeros((), jnp.float32)) if track_running_stats else None

    def __call__(self, inputs: ArrayLike, *, deterministic: bool = True) -> jax.Array:
        """inputs [B, C, *] → the same shape.

        Args:
            inputs: channels on axis 1.
            deterministic: False is training mode, and writes the running statistics.

        Raises:
            ValueError: another number of channels; in training mode, one value for each channel.
        """
        inputs = as_array(inputs)
        check_channels("inputs", inputs, self.num_features)
        operands = [inputs] if self.weight is None else [inputs, self.weight[...]]
        dtype = self.dtype or jnp.result_type(*operands)
        x = inputs.astype(at_least_float32(dtype))
        running = [stat for stat in (self.running_mean, self.running_var) if stat is not None]
        if running and deterministic:
            mean, variance = (_channels(stat[...].astype(x.dtype), x) for stat in running)
        else:
            mean, variance = self._of_batch(x, check=not deterministic)
        if running and not deterministic:
            self._track(mean, variance, x.size // self.num_features)
        x = (x - mean) * jax.lax.rsqrt(variance + self.epsilon)
        if self.weight is not None and self.bias is not None:
            x = x * _channels(self.weight[...].astype(x.dtype), x) + _channels(self.bias[...].astype(x.dtype), x)
        return x.astype(dtype)

    def _of_batch(self, x: jax.Array, *, check: bool) -> tuple[jax.Array, jax.Array]:
        """Mean and biased variance, [1, C, 1, …]."""
        if check and x.size <= self.num_features:
            raise ValueError(
                "Batch norm in training mode must have more than one value for each channel, got shape "
                f"{shape_text(x.shape)}."
            )
        axes = (0, *range(2, x.ndim))
        mean = jnp.mean(x, axes, keepdims=True)
        return mean, jnp.mean((x - mean) ** 2, axes, keepdims=True)

    def _track(self, mean: jax.Array, variance: jax.Array, count: int) -> None:
        """Move the running statistics towards those of a batch of `count` values a channel."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        batches = self.num_batches_tracked[...] + 1
        self.num_batches_tracked[...] = batches
        for stat, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
            new = jax.lax.stop_gradient(new.reshape(-1))
            old = stat[...].astype(new.dtype)
            share = 1 / batches.astype(new.dtype) if self.momentum is None else self.momentum
            stat[...] = ((1 - share) * old + share * new).astype(stat[...].dtype)


def _channels(values: jax.Array, x: jax.Array) -> jax.Array:
    """[C] → [1, C, 1, …], of the rank of x."""
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))
