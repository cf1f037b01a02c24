"""Options that several commands share: the file, what it is, and the sizes of what it is loaded into."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .variants import KNOWN, VARIANTS

File = Annotated[Path, typer.Argument(help="A checkpoint: a file, the index of its shards, or a directory.")]
Key = Annotated[
    str | None, typer.Option(help="Where the state dict lies in a nested PyTorch file, as `model_state_dict`.")
]
Module = Annotated[str | None, typer.Option(help=f"The module the weights are of: {KNOWN}.")]
FamilyName = Annotated[
    str | None, typer.Option("--family", help="The pretrained family they are of (bert), with its config.json.")
]
Config = Annotated[Path | None, typer.Option(help="The family's config.json; by default the one beside the weights.")]
Prefix = Annotated[str, typer.Option(help="Take the tensors below this path only.")]
Rename = Annotated[
    list[str] | None, typer.Option(metavar="OLD=NEW", help="Whole leading segments of names; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Size = Annotated[int | None, typer.Option(min=1, help="Where the module has it.", rich_help_panel="Sizes")]
_UNTOLD = "Of encoders and decoders; no file of weights tells it."
#: Settings that are no sizes.
CHOICES: dict[str, Any] = {
    "norm_first": Annotated[bool | None, typer.Option("--norm-first", help=_UNTOLD, rich_help_panel="Sizes")],
    "activation": Annotated[Literal["relu", "gelu"] | None, typer.Option(help=_UNTOLD, rich_help_panel="Sizes")],
    "layer_norm_eps": Annotated[float | None, typer.Option(min=0.0, help=_UNTOLD, rich_help_panel="Sizes")],
}


def with_sizes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for each size and choice of any variant; it gets all as `sizes`, None when not given."""
    signature = inspect.signature(command)
    sizes_of_all = dict.fromkeys(name for variant in VARIANTS.values() for name in variant.size_names)
    kinds = {**dict.fromkeys(sizes_of_all, Size), **CHOICES}

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        sizes = {name: options.pop(name, None) for name in kinds}
        return command(*arguments, **options, sizes=sizes)

    size_options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]
    own = [parameter for name, parameter in signature.parameters.items() if name != "sizes"]
    run.__signature__ = signature.replace(parameters=[*own, *size_options])  # pyright: ignore[reportAttributeAccessIssue] -- what inspect.signature reads
    return run


def parse_renames(pairs: list[str] | None) -> dict[str, str]:
    """`old=new` pairs.

    Raises:
        typer.BadParameter: one without `=`, or without an old name.
    """
    renames = {}
    for pair in pairs or ():
        old, equals, new = pair.partition("=")
        if not equals or not old:
            raise typer.BadParameter(f"--rename takes old=new, got {pair!r}.")
        renames[old] = new
    return renames


def bytes_text(count: int) -> str:
    """A number of bytes with a unit."""
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def flag(name: str) -> str:
    """The option of an argument: embed_dim → --embed-dim."""
    return "--" + name.replace("_", "-")
