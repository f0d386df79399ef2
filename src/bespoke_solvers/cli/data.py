"""bespoke data."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bespoke_solvers.cli.common import DryRun, Quiet
from bespoke_solvers.data import check, prepare


def data(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="Folder or zip of pictures, CIFAR-10 (its folder or .tar.gz), or MNIST (a folder of its files).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Scale and crop to squares of this side; needed if sizes differ. MNIST gets a margin instead."
        ),
    ] = None,
    split: Annotated[Literal["train", "test"], typer.Option(help="Part of the data set to take.")] = "train",
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Convert a data set of pictures into the form that training and evaluation read."""
    if dry_run:
        found = check(source, out, size=size, split=split)
        counted = "pictures" if found.count is None else f"{found.count:,} pictures"
        typer.echo(f"would read {found.name}: {counted}, {_in_words(found.classes)}")
        typer.echo(f"and write them to {out}")
        return
    pictures = prepare(source, out, size=size, split=split, progress=not quiet)
    count, channels, height, width = pictures.pixels.shape
    told = f"{count:,} pictures of {channels} x {height} x {width}, {_in_words(pictures.classes)}"
    typer.echo(f"{pictures.name}: {told}")
    typer.echo(f"{out}: {pictures.pixels.nbytes / 2**20:,.1f} MiB")


def _in_words(classes: list[str]) -> str:
    names = classes if len(classes) < 12 else [*classes[:5], "...", classes[-1]]
    return f"{len(classes)} classes: {', '.join(names)}" if names else "no classes"
