"""Linear layers, and the initial values of parameters, as PyTorch has them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._checks import check_sizes
from .._typing import ArrayLike, DType, Precision
from ..core.mask_arrays import as_array
from ..core.projection import add_bias

Initializer = Callable[..., jax.Array]

#: torch.nn.Linear's default: uniform in ±1/√fan_in.
torch_kernel_init = nnx.initializers.variance_scaling(1.0 / 3.0, "fan_in", "uniform")


def torch_bias_init(fan_in: int) -> Initializer:
    """torch.nn.Linear's default for biases: uniform in ±1/√fan_in, the fan_in of the weight beside it."""
    bound = fan_in**-0.5 if fan_in else 0.0

    def init(key, shape, dtype=jnp.float32, out_sharding=None):
        del out_sharding
        return nnx.initializers.uniform(2 * bound)(key, shape, dtype) - jnp.asarray(bound, dtype)

    return init


class Linear(nnx.Linear):
    """nnx.Linear whose bias is added, and its gradient summed, in float32 at least."""

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs, **options: Any):
        check_sizes(in_features=in_features, out_features=out_features, least=0)
        super().__init__(in_features, out_features, rngs=rngs, **options)

    def __call__(self, inputs: ArrayLike) -> jax.Array:
        """inputs [*, in] → inputs · kernel + bias [*, out]."""
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = self.promote_dtype((as_array(inputs), self.kernel[...], bias), dtype=self.dtype)
        outputs = jnp.matmul(inputs, kernel, precision=self.precision)
        return outputs if bias is None else add_bias(outputs, bias)


class InOutLinear(Linear):
    """Linear whose weight PyTorch holds as (in, out), as Flax does: transformers' Conv1D, of GPT-2."""


def linear(
    in_features: int,
    out_features: int,
    *,
    use_bias: bool = True,
    bias_init: Initializer | None = None,
    dtype: DType = None,
    param_dtype: DType = jnp.float32,
    precision: Precision = None,
    rngs: nnx.Rngs,
) -> Linear:
    """Linear [*, in] → [*, out], initialised as torch.nn.Linear unless `bias_init` says otherwise."""
    check_sizes(in_features=in_features, out_features=out_features, least=0)
    return Linear(
        in_features,
        out_features,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        precision=precision,
        kernel_init=torch_kernel_init,
        bias_init=bias_init or torch_bias_init(in_features),
        rngs=rngs,
    )


def parameter(init: Initializer, shape: tuple[int, ...], *, param_dtype: DType, rngs: nnx.Rngs) -> nnx.Param:
    """A parameter of a module that keeps its original's names."""
    return nnx.Param(init(rngs.params(), shape, param_dtype))
