"""A module as one jitted call with next to no Python around it: what torch.compile is to habit."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from .buckets import Buckets
from .structure import Structure, Watch, advances, contents, take_apart, written


def compile(
    module: nnx.Module,
    *,
    select: Callable[[Any], Any] | None = None,
    pad_to: Sequence[int] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> "Compiled":
    """The module, jitted: a callable with its signature and, per call, little more Python than jax.jit itself has.

    >>> fast = jaxattn.compile(model, select=lambda r: r.last_hidden_state, pad_to=(64, 128, 256))
    >>> hidden = fast(input_ids, attention_mask)

    Weights are arguments of the jit, read from the module's Variables at each call: jaxattn.load_state_dict and an
    nnx.Optimizer are seen without compiling anew. Attributes are part of the compilation: setting one (a layer, a
    Variable, a rate, `module.eval()`) is noticed at the next call, which compiles for what is new; going back to what
    was before does not. What the module reaches in other ways (a global, a closure, the inside of an object that is no
    module, list, tuple, set or dict) is constant: call `fast.refresh()` after changing it.

    Arrays are traced. None, bools, strings, Python numbers and other hashable objects are static: each value has its
    own compilation, so give a number that changes often as an array. One array given twice stays one array. nnx.Rngs
    given as arguments are traced and advance as in the eager call.

    Transformations: jax.grad and jax.vmap with respect to inputs work. Weights get no gradients through `fast`: write
    the loss with the module itself. Inside another jit they are constants of that jit, as all that it closes over.

    Args:
        module: any NNX module with a `__call__`. It must not write its state there (BatchNorm in training, nnx.sow,
            nnx.Rngs that it stores).
        select: what to keep of the result, inside the jit: what is dropped is not computed.
        pad_to: lengths in tokens, increasing. Sequences are padded to the first that fits, the padding is masked, and
            results are cut back, so that there is a compilation for each of these lengths, not for each length. For
            modules that take `input_ids` and `attention_mask`, `src` and `src_key_padding_mask` or `query`, `key`,
            `value` and `key_padding_mask`, batch first. Results are those without padding within rounding; dropout,
            if any, draws other masks. `select` may only pick from the result.
        compiler_options: XLA's, as jax.jit takes them.

    Returns:
        The callable; `compilations` counts, `lower(…)` gives jax.stages.Lowered for the same arguments.

    Raises:
        TypeError: `module` is no NNX module or has no `__call__`, `select` is not callable; when called: an NNX object
            other than nnx.Rngs or something unhashable as an argument, an array that `pad_to` knows nothing of.
        ValueError: `pad_to` holds no increasing positive integers; when called: a sequence longer than all of them,
            lengths that differ, a sentence without a token to attend to in an `attention_mask` that is padded.
        NotImplementedError: a module that `pad_to` can't serve, Variables that hold Refs; when called: a module that
            writes its state, a result that can't be cut back. Inside jaxattn.capture: as for every nested jit.
    """
    if not isinstance(module, nnx.Module) or not callable(module):
        raise TypeError(f"`module` must be an nnx.Module with a `__call__`, got {type(module).__name__}.")
    if select is not None and not callable(select):
        raise TypeError(f"`select` must be a function of the module's result, got {select!r}.")
    buckets = None if pad_to is None else Buckets(module, pad_to)
    return Compiled(module, select, buckets, compiler_options)


class _Call(NamedTuple):
    """What a compilation is for, besides shapes: the module but its arrays, and the arguments but their arrays."""

    structure: Structure
    treedef: Any
    leaves: tuple["_Array | _Random | _Static", ...]


class _Array(NamedTuple):
    index: int


class _Random(NamedTuple):
    index: int
    structure: Structure


class _Static(NamedTuple):
    """A value with what tells it from others that are equal: 1, 1.0 and True; 0.0 and -0.0."""

    value: Any
    kind: type
    sign: str


class Compiled:
    """See `jaxattn.compile`."""

    def __init__(
        self,
        module: Any,
        select: Callable[[Any], Any] | None,
        buckets: Buckets | None,
        compiler_options: Mapping[str, Any] | None,
    ):
        self.__signature__ = inspect.signature(module.__call__)
        self.compilations = 0
        self._module, self._select, self._buckets = module, select, buckets
        self._options = None if compiler_options is None else dict(compiler_options)
        self.refresh()

    def __repr__(self) -> str:
        padded = "" if self._buckets is None else f", pad_to={self._buckets.lengths}"
        count = f"{self.compilations} compilation" + ("" if self.compilations == 1 else "s")
        return f"<jaxattn.compile({type(self._module).__name__}{padded}): {count}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied without its compilations: as `jaxattn.compile` would make it anew."""
        lengths = None if self._buckets is None else self._buckets.lengths
        return _compiled, (self._module, self._select, lengths, self._options)

    def refresh(self) -> None:
        """Forget every compilation, for a change that can't be noticed."""
        self._structures: dict[Any, Structure] = {}
        self._jitted = jax.jit(self._trace, static_argnums=0, compiler_options=self._options)
        self._look()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._buckets is None:
            return self._run(args, kwargs)
        bound, length = self._buckets.pad(self.__signature__.bind(*args, **kwargs))
        return self._buckets.cut(self._run(bound.args, bound.kwargs), length)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """As jax.jit(…).lower, for what a call with these arguments runs."""
        if self._buckets is not None:
            bound, _ = self._buckets.pad(self.__signature__.bind(*args, **kwargs))
            args, kwargs = bound.args, bound.kwargs
        call, arrays, _ = self._prepare(args, kwargs)
        return self._jitted.lower(call, self._values(), arrays)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call, arrays, random = self._prepare(args, kwargs)
        result, advanced = self._jitted(call, self._values(), arrays)
        for index, values in advanced.items():
            for slot, value in values.items():
                random[index][slot].set_raw_value(value)
        return result

    def _look(self) -> None:
        """Take the module apart as it is now."""
        watch = Watch(self._module)
        structure, self._slots = take_apart(self._module)
        self._structure, self._watch = self._known(structure, watch.kinds()), watch

    def _known(self, structure: Structure, kinds: tuple[type, ...] = ()) -> Structure:
        """The equal structure that was compiled for, if there is one."""
        try:
            return self._structures.setdefault((structure.graphdef, structure.treedef, kinds), structure)
        except TypeError:  # An attribute that can't be hashed may be changed in place: it is equal to nothing.
            return structure

    def _values(self) -> list[Any]:
        return [slot.get_raw_value() for slot in self._slots]

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Call, list[Any], dict[int, list[Any]]]:
        """The arguments as (static part, arrays, slots of the nnx.Rngs among them)."""
        if self._watch.changed():
            self._look()
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=_is_nnx)
        arrays, known, random = [], {}, {}
        for position, leaf in enumerate(leaves):
            identity = id(leaf)
            if identity in known:
                leaves[position] = known[identity]
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
                leaves[position] = known[identity] = _Array(len(arrays))
                arrays.append(leaf)
            elif isinstance(leaf, (nnx.Rngs, nnx.RngStream)):
                structure, slots = take_apart(leaf)
                leaves[position] = known[identity] = _Random(len(arrays), self._known(structure))
                random[len(arrays)] = slots
                arrays.append([slot.get_raw_value() for slot in slots])
            else:
                leaves[position] = _static(leaf)
        return _Call(self._structure, treedef, tuple(leaves)), arrays, random

    def _trace(self, call: _Call, values: list[Any], arrays: list[Any]) -> tuple[Any, dict[int, dict[int, Any]]]:
        """The jitted function: (what `select` keeps, values of the random state that changed)."""
        result, advanced = self._compute(call, values, arrays)
        if self._buckets is not None:
            args, kwargs = jax.tree.unflatten(call.treedef, call.leaves)
            arguments = self.__signature__.bind(*args, **kwargs).arguments
            indices = {name: leaf.index for name, leaf in arguments.items() if isinstance(leaf, _Array)}
            result = self._buckets.mark(result, lambda others: self._compute(call, values, others)[0], arrays, indices)
        self.compilations += 1
        return result, advanced

    def _compute(self, call: _Call, values: list[Any], arrays: list[Any]) -> tuple[Any, dict[int, dict[int, Any]]]:
        """Call a copy of the module with copies of the random state."""
        module = call.structure.build(values)
        random = {leaf.index: leaf.structure for leaf in call.leaves if isinstance(leaf, _Random)}
        streams = {index: structure.build(arrays[index]) for index, structure in random.items()}
        given = {**dict(enumerate(arrays)), **streams}
        leaves = [leaf.value if isinstance(leaf, _Static) else given[leaf.index] for leaf in call.leaves]
        args, kwargs = jax.tree.unflatten(call.treedef, leaves)
        before = contents(module)
        result = module(*args, **kwargs)
        _check_unchanged(module, before)
        advanced = {index: advances(stream, arrays[index]) for index, stream in streams.items()}
        return self._pick(result), advanced

    def _pick(self, result: Any) -> Any:
        if self._select is None:
            return result
        selected = self._select(result)
        if self._buckets is not None:
            self._buckets.check_picked(selected, result)
        return selected


def _compiled(module: nnx.Module, select: Any, pad_to: Any, compiler_options: Any) -> Compiled:
    return compile(module, select=select, pad_to=pad_to, compiler_options=compiler_options)


def _check_unchanged(module: Any, before: dict[str, list[Any]]) -> None:
    if changed := written(before, contents(module)):
        listed = ", ".join(f"`{path}`" for path in changed[:3])
        raise NotImplementedError(
            f"A compiled module must not write its state when it is called, got a {type(module).__name__} that wrote "
            f"{listed}; call it so that it does not (evaluation mode, `rngs` as an argument), or use nnx.jit."
        )


def _is_nnx(value: Any) -> bool:
    return isinstance(value, (nnx.Pytree, nnx.Variable, nnx.State))


def _static(leaf: Any) -> _Static:
    if _is_nnx(leaf):
        raise TypeError(
            f"Arguments of a compiled module must be arrays, nnx.Rngs or hashable, got a {type(leaf).__name__}; "
            "pass the arrays that it holds."
        )
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"Arguments of a compiled module must be arrays, nnx.Rngs or hashable, got a {type(leaf).__name__}."
        ) from None
    return _Static(leaf, type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else "")
