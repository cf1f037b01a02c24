"""`jaxattn explain`: the steps of a module on a small example, and where it attends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from flax import nnx

from ..capture import Event, capture_events
from .options import AsJson, Force, flag, with_sizes
from .steps import steps_of, table_of
from .terminal import messages, output, print_json, progress, say
from .variants import VARIANTS, variant_named

SENTENCE = "He ate an apple"
Length = Annotated[int | None, typer.Option(min=1, help="Tokens in the sequence; by default those of the text.")]


@dataclass(frozen=True)
class Example:
    """A module, what it is called with, the words at its positions, and whether its weights are random."""

    title: str
    module: nnx.Module
    inputs: tuple[Any, ...]
    tokens: list[str]
    random: bool = True


@with_sizes
def command(
    variant: Annotated[str | None, typer.Argument(help="Which module, as `multi_head`; leave out for a list.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples in the batch; by default 1.")] = None,
    length: Length = None,
    source_length: Annotated[int | None, typer.Option(min=1, help="Tokens of keys and values, if others.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights and inputs; by default 0.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A pretrained model's directory, instead.")] = None,
    text: Annotated[str | None, typer.Option(help=f'What is read; by default "{SENTENCE}".')] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the weights there as a heatmap.")] = None,
    layer: Annotated[int | None, typer.Option(help="Whose weights are drawn, from 0; by default the last's.")] = None,
    head: Annotated[int | None, typer.Option(help="Which head is drawn, from 0; by default all are.")] = None,
    json_: AsJson = False,
    force: Force = False,
    *,
    sizes: dict[str, Any],
) -> None:
    """Run a module on a small example and show its steps, read off the run: what goes in, what comes out, what it is.

    A variant has random weights, and random embeddings for the words of the text; a checkpoint has its own.
    """
    numbers = {"batch": batch, "length": length, "source_length": source_length, "seed": seed}
    others = variant, checkpoint, text, plot, layer, head, *numbers.values(), *sizes.values()
    if all(value is None for value in others):
        _list(json_)
        return
    if plot is None and (layer is not None or head is not None):
        raise typer.BadParameter("--layer and --head choose what --plot draws; give --plot too.")
    if plot is not None:
        from ..plots.saving import check_destination

        check_destination(plot, force=force)
    with progress("running"):
        example = _example(variant, checkpoint, text, numbers, sizes)
        _, events = capture_events(example.module, *example.inputs)
    report: dict[str, Any] = {"module": example.title, "steps": steps_of(example.module, events)}
    if plot is not None:
        report["plot"] = _plot(example, events, plot, layer, head, force)
    _print(example, report, json_)


def _list(as_json: bool) -> None:
    """The names that this command knows."""
    if as_json:
        print_json({"variants": list(VARIANTS)})
        return
    console = output()
    console.print("Give a name, or a pretrained model's directory by --checkpoint:")
    for name, variant in VARIANTS.items():
        console.print(f"  {name:<22} {variant.torch_class.partition(':')[2]}")


def _example(
    variant: str | None,
    checkpoint: Path | None,
    text: str | None,
    numbers: dict[str, int | None],
    sizes: dict[str, Any],
) -> Example:
    if (variant is None) == (checkpoint is None):
        came = "neither" if variant is None else "both"
        raise typer.BadParameter(f"give a variant ({', '.join(VARIANTS)}) or --checkpoint, got {came}.")
    if text is not None and not text.split():
        raise typer.BadParameter("--text must hold a word.")
    if checkpoint is None:
        return _variant_example(variant or "", text, **numbers, sizes=sizes)
    given = [flag(name) for name, number in (numbers | sizes).items() if number is not None]
    if given:
        raise typer.BadParameter(f"a checkpoint has its own sizes; leave out {', '.join(given)}.")
    return _checkpoint_example(checkpoint, text or SENTENCE)


def _variant_example(
    name: str,
    text: str | None,
    *,
    batch: int | None,
    length: int | None,
    source_length: int | None,
    seed: int | None,
    sizes: dict[str, Any],
) -> Example:
    variant = variant_named(name)
    if text is not None and length is not None:
        raise typer.BadParameter("--text says how many tokens there are; leave out --length.")
    words = (text or SENTENCE).split()
    fixed = variant.length_size
    if fixed is not None:
        given = {"length": length, "source_length": source_length, "text": text, fixed: sizes[fixed]}
        if len(names := [flag(key) for key, value in given.items() if value is not None]) > 1:
            raise typer.BadParameter(f"{name} has one length; give one of {', '.join(names)}.")
        length = source_length = length or source_length or sizes[fixed] or len(words)
        sizes = {**sizes, fixed: length}
    tokens = words if length in (None, len(words)) else []
    length = length or len(words)
    try:
        complete = variant.sizes(**sizes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    rng = np.random.default_rng(seed or 0)
    inputs = variant.inputs(rng, batch or 1, length, source_length or length, **complete)
    if source_length is not None and all(array.shape[-2] != source_length for array in inputs):
        raise typer.BadParameter(f"{name} reads one sequence; leave out --source-length.")
    module = variant.flax(nnx.Rngs(seed or 0), **complete)
    arguments = ", ".join(f"{size}={value}" for size, value in complete.items())
    return Example(f"{name}: {type(module).__name__}({arguments})", module, _embedded(inputs, tokens), tokens)


def _embedded(inputs: tuple[np.ndarray, ...], tokens: list[str]) -> tuple[np.ndarray, ...]:
    """A word that comes again has the same embedding again; arrays that were one stay one."""
    first = [tokens.index(token) for token in tokens]
    once = {id(array): array[..., first, :] if array.shape[-2] == len(tokens) else array for array in inputs}
    return tuple(once[id(array)] for array in inputs)


def _checkpoint_example(directory: Path, text: str) -> Example:
    from ..models import from_pretrained

    if directory.is_file():
        raise ValueError(
            f"`{directory}` is a file: --checkpoint wants the directory that holds config.json, tokenizer.json and the "
            f"weights, perhaps `{directory.parent}`."
        )
    model = from_pretrained(directory)
    encoding = _tokenizer(directory / "tokenizer.json").encode(text)
    inputs = [np.asarray(ids)[None] for ids in (encoding.ids, encoding.attention_mask, encoding.type_ids)]
    return Example(
        f"{directory.resolve().name}: {type(model).__name__}", model, tuple(inputs), encoding.tokens, random=False
    )


def _tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError('--checkpoint needs tokenizers: pip install "jaxattn[text]".') from error
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: --checkpoint needs a tokenizer.json beside the weights.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"`{path}` can't be read as a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _plot(
    example: Example, events: Sequence[Event], path: Path, layer: int | None, head: int | None, force: bool
) -> dict[str, Any]:
    """Draw the first example's weights of one layer; which, for the report."""
    from ..plots.heatmap import attention_heatmap

    maps = [event for event in events if event.name == "weights"]
    if not maps:
        raise typer.BadParameter("this module has no attention weights to draw; leave out --plot.")
    event = maps[_index("--layer", layer, len(maps), default=len(maps) - 1)]
    weights = np.asarray(event.value[0], np.float32)  # [N, T, S], or [T, S] without heads
    title = event.path or example.title.partition(":")[0]
    if head is not None:
        heads = weights if weights.ndim == 3 else weights[None]
        weights, title = heads[_index("--head", head, len(heads), default=0)], f"{title}, head {head}"
    if example.random:
        title += " (random weights)"
    labels = {
        name: _labels(example.tokens, size)
        for name, size in zip(("query_labels", "key_labels"), weights.shape[-2:], strict=True)
    }
    attention_heatmap(weights, **labels, title=title, path=path, force=force)
    return {"file": str(path), "path": event.path, "head": head, "tokens": example.tokens}


def _index(option: str, index: int | None, count: int, *, default: int) -> int:
    if index is None:
        return default
    if not 0 <= index < count:
        raise typer.BadParameter(f"{option} must be in 0 … {count - 1}, got {index}.")
    return index


def _labels(tokens: list[str], size: int) -> list[str] | None:
    return tokens if size == len(tokens) else (["query"] if size == 1 else None)


def _print(example: Example, report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    console = output()
    if example.tokens:
        console.print("tokens: " + " · ".join(example.tokens))
    console.print(table_of(report["steps"], example.title))
    if "plot" in report:
        say(messages(), f"Wrote {report['plot']['file']}")
