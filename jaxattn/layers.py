"""The Flax layers that every module is made of, with PyTorch's constants instead of Flax's."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from ._checks import check_rate
from ._typing import ArrayLike, DType, Precision
from .core.dropout import dropout
from .core.projection import add_bias

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

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs [*, in] → inputs · kernel + bias [*, out]."""
        bias = None if self.bias is None else self.bias[...]
        inputs, kernel, bias = self.promote_dtype((inputs, self.kernel[...], bias), dtype=self.dtype)
        outputs = jnp.matmul(inputs, kernel, precision=self.precision)
        return outputs if bias is None else add_bias(outputs, bias)


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


def dropout_key(rngs: nnx.Rngs | None) -> jax.Array:
    """The next key from the stream `dropout` of `rngs`.

    Raises:
        ValueError: no randomness given.
    """
    if rngs is None:
        raise ValueError("Dropout with `deterministic=False` needs `rngs=nnx.Rngs(dropout=seed)`, got rngs=None.")
    return rngs.dropout()


class Dropout(nnx.Module):
    """outputs = inputs · keep / (1 − rate) in training, inputs otherwise. Holds no randomness: each call gets it."""

    def __init__(self, rate: float = 0.5):
        check_rate("rate", rate)
        self.rate = rate

    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool = True,
        rngs: nnx.Rngs | None = None,
        keep_mask: ArrayLike | None = None,
    ) -> jax.Array:
        """inputs [*] → [*].

        Args:
            inputs: any shape.
            deterministic: False applies dropout.
            rngs: its stream `dropout` draws what is kept.
            keep_mask: True = kept, broadcastable to inputs, instead of drawing.

        Raises:
            ValueError: dropout without randomness or mask.
        """
        if deterministic or self.rate == 0:
            return inputs
        if keep_mask is not None:
            return dropout(inputs, self.rate, keep_mask=jnp.asarray(keep_mask))
        return dropout(inputs, self.rate, rng=dropout_key(rngs))


def layer_norm(
    features: int,
    *,
    epsilon: float = 1e-5,
    use_bias: bool = True,
    dtype: DType = None,
    param_dtype: DType = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.LayerNorm:
    """nnx.LayerNorm with torch's epsilon, and the variance of centred values: E[x²] − E[x]² cancels."""
    return nnx.LayerNorm(
        features,
        epsilon=epsilon,
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        use_fast_variance=False,
        rngs=rngs,
    )
