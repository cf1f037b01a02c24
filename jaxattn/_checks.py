"""Every error about a shape, a dtype or a value, worded once: what must hold, what came, what to do."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._text import one_line
from ._typing import Size

#: The text of a ConversionError lists so many problems.
PROBLEMS_SHOWN = 200


class ConversionError(ValueError):
    """Weights that cannot be read, matched or written. `problems` lists every finding, one sentence each.

    Sentences quote names and texts of files: what a terminal would obey in them is escaped. `shown` are the lines that
    stand for the problems in the message, where those are too many to be read; None shows the first of them.
    """

    def __init__(self, headline: str, problems: Sequence[str] = (), shown: Sequence[str] | None = None):
        self.headline = one_line(headline)
        self.problems = tuple(map(one_line, problems))
        self.shown = None if shown is None else tuple(map(one_line, shown))
        lines = self.shown
        if lines is None:
            lines = [f"  - {problem}" for problem in self.problems[:PROBLEMS_SHOWN]]
            if len(self.problems) > PROBLEMS_SHOWN:
                lines.append(f"  … and {len(self.problems) - PROBLEMS_SHOWN} more, in the error's `problems`")
        super().__init__("\n".join([self.headline, *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.headline, self.problems, self.shown)


def shape_text(shape: Sequence[Size]) -> str:
    """A shape as Python writes it, symbolic sizes of `jax.export` by their names."""
    return str(tuple(int(size) if isinstance(size, int | np.integer) else size for size in shape))


def exceeds(size: Size, most: int) -> bool:
    """Whether a size is known to be more than `most`: of a symbolic one (jax.export) little may be known."""
    try:
        return bool(size > most)
    except jax.errors.InconclusiveDimensionOperation:
        return False


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many there are where not all are shown."""
    return ", ".join(names[:most]) + (f", … ({len(names)})" if len(names) > most else "")


def check_divisible(**sizes: Any) -> None:
    """Of two sizes, the first divides the second; their names are those that the user wrote."""
    (divisor_name, divisor), (name, size) = sizes.items()
    check_sizes(**sizes)
    if size % divisor:
        raise ValueError(f"`{divisor_name}` must divide `{name}`, got {divisor_name}={divisor}, {name}={size}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {listed}, got {value!r}.")


def check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"`{name}` must be a rate in [0, 1), got {rate}.")


def check_floating(name: str, array: Any) -> None:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"`{name}` must be a floating-point array, got dtype {array.dtype}; cast it first.")


def check_features(name: str, array: Any, features: int, axes: str) -> None:
    """`array` is [*B, length, features]: at least two axes, the last one of the size that the weights expect."""
    check_floating(name, array)
    if array.ndim < 2 or array.shape[-1] != features:
        raise ValueError(f"`{name}` must be {axes} with last axis {features}, got shape {shape_text(array.shape)}.")


def check_same_batch(**arrays: Any) -> None:
    """The leading batch axes (all but the last two) agree."""
    batches = {name: array.shape[:-2] for name, array in arrays.items()}
    if len(set(batches.values())) > 1:
        listed = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in arrays.items())
        raise ValueError(f"The batch axes of {', '.join(f'`{name}`' for name in arrays)} must be equal, got {listed}.")


def check_attention(q: Any, k: Any, v: Any) -> None:
    """q [*B, T, N, H], k [*B, S, K, H], v [*B, S, K, V], K divides N."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        check_floating(name, array)
        if array.ndim < 3:
            raise ValueError(f"`{name}` must be [*B, length, heads, width], got shape {shape_text(array.shape)}.")
    shapes = f"got q {shape_text(q.shape)}, k {shape_text(k.shape)}, v {shape_text(v.shape)}"
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-3] != v.shape[:-3]:
        raise ValueError(f"The batch axes of `q`, `k` and `v` must be equal, {shapes}.")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] < 1:
        raise ValueError(f"`q` and `k` must have the same head width (last axis), 1 or more, {shapes}.")
    if k.shape[-3:-1] != v.shape[-3:-1]:
        raise ValueError(f"`k` and `v` must have the same length and heads (axes -3 and -2), {shapes}.")
    if k.shape[-2] < 1 or q.shape[-2] % k.shape[-2]:
        raise ValueError(
            f"The heads of `q` (axis -2) must be a multiple of the heads of `k`, {shapes}. "
            "The layout is [*B, length, heads, width]: swap axes -3 and -2 of torch's [*B, heads, length, width]."
        )


def check_broadcasts(name: str, array: Any, logits_shape: Sequence[Size], axes: str = "(..., N, T, S)") -> None:
    """`array` broadcasts from the right to the logits without widening them."""
    shape = array.shape
    fits = len(shape) <= len(logits_shape) and all(
        size in (1, full) for size, full in zip(reversed(shape), reversed(logits_shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must broadcast from the right to the logits {axes} = {shape_text(logits_shape)}, "
            f"got shape {shape_text(shape)}; a padding mask over keys (B, S) is "
            f"`mask[:, {'None, ' * (axes.count(',') - 1)}:]`."
        )


def check_mask_dtype(mask: Any) -> None:
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"`mask` must be boolean with True = may attend, got dtype {mask.dtype}; "
            "pass an additive float mask as `bias`, a 0/1 mask as `mask != 0`."
        )


def check_length(name: str, array: Any, length: Size) -> None:
    if array.shape[-2] != length:
        raise ValueError(f"`{name}` must have {length} row(s) (axis -2), got shape {shape_text(array.shape)}.")


def check_mask_kind(mask: Any) -> None:
    if mask.dtype.kind in "OSUmM":
        raise TypeError(f"`mask` must hold booleans or numbers, 0 = blocked, got dtype {mask.dtype}.")


def check_shape_in(name: str, array: Any, shapes: Sequence[Sequence[Size]], axes: str) -> None:
    if tuple(array.shape) not in [tuple(shape) for shape in shapes]:
        listed = " or ".join(shape_text(shape) for shape in shapes)
        raise ValueError(f"`{name}` must be {axes} = {listed}, got shape {shape_text(array.shape)}.")


def check_torch_mask_dtype(name: str, array: Any) -> None:
    if array.dtype != jnp.bool_ and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"`{name}` must be boolean (True = blocked) or floating (added to the logits), got dtype {array.dtype}; "
            f"pass `{name} != 0` if non-zero means blocked."
        )


def check_whole(name: str, value: Any, *, least: int | None = None, instead: str = "") -> None:
    """`value` is an integer (no boolean), `least` or more; `instead` names what else is taken."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer{instead}, got {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"`{name}` must be {least} or more{instead}, got {value}.")


def check_sizes(*, least: int = 1, **sizes: Any) -> None:
    """Sizes and counts are integers, `least` or more."""
    for name, size in sizes.items():
        check_whole(name, size, least=least)


def check_channels(name: str, array: Any, channels: int) -> None:
    """`array` is [B, C, *] with C channels."""
    check_floating(name, array)
    if array.ndim < 2 or array.shape[1] != channels:
        raise ValueError(f"`{name}` must be [B, {channels}, *], channels on axis 1, got {shape_text(array.shape)}.")


def check_integers(name: str, array: Any) -> None:
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"`{name}` must hold integers, got dtype {array.dtype}; use `{name}.astype(int)`.")


def check_mask_lengths(lengths: Any, length_kv: Size) -> None:
    """`lengths`, a NumPy array of known values, count keys; of a symbolic number of keys nothing is too many."""
    if lengths.size and (lengths.min() < 0 or (isinstance(length_kv, int) and lengths.max() > length_kv)):
        raise ValueError(
            f"`lengths` must lie between 0 and the key length S = {length_kv}, got values from {lengths.min()} to "
            f"{lengths.max()}; they count the keys of an example that may be attended, padding left out."
        )


def check_callable(name: str, fn: Any, signature: str) -> None:
    if not callable(fn):
        raise TypeError(f"`{name}` must be a function {signature}, got {type(fn).__name__}.")


def check_predicate_result(result: Any) -> None:
    if result.dtype != jnp.bool_ or result.shape != ():
        raise TypeError(
            f"`fn` must return one boolean, True = may attend, for integers (b, n, i, j), got dtype {result.dtype} of "
            f"shape {shape_text(result.shape)}; return a comparison, and change logits by `score_mod`."
        )


def check_score_mod_result(result: Any) -> None:
    if result.shape != ():
        raise ValueError(
            "`score_mod` must return one number for one logit, got shape "
            f"{shape_text(result.shape)}; index your arrays down to one element."
        )
    if not jnp.issubdtype(result.dtype, jnp.floating):
        raise TypeError(
            f"`score_mod` must return a floating-point logit, got dtype {result.dtype}; pass a condition as `mask`."
        )


def check_segment_ids(name: str, ids: Any, batch: Sequence[Size], length: Size) -> None:
    if tuple(ids.shape) not in ((*batch, length), (length,)):
        raise ValueError(
            f"`{name}` must be [*B, length] = {shape_text((*batch, length))} or ({length},), got shape "
            f"{shape_text(ids.shape)}; pass both `q_ids` and `kv_ids` where queries and keys differ in length."
        )


def check_selection(name: str, indices: Any, size: Size) -> Any:
    """Indices into an axis of `size`, as a one-dimensional integer array; negative ones count from the end."""
    array = indices if hasattr(indices, "dtype") else np.asarray(indices, dtype=None if len(indices) else np.int32)
    if array.ndim != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"`{name}` must be a list of integers, got {indices!r}.")
    if not isinstance(array, Tracer) and array.size:
        values = np.asarray(array)
        if values.min() < -size or values.max() >= size:
            raise ValueError(f"`{name}` must lie in [0, {size}), got {values.tolist()}.")
    return jnp.where(jnp.asarray(array) < 0, array + size, array)
