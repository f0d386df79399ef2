"""bespoke data."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bespoke_solvers.cli.common import Quiet
from bespoke_solvers.data import prepare


def data(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A folder or zip of pictures, or the files of CIFAR-10 (a folder or the .tar.gz) or MNIST (a folder).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Make squares of that side: scaled and cropped; needed if sizes differ. MNIST gets a margin."
        ),
    ] = None,
    split: Annotated[Literal["train", "test"], typer.Option(help="Which part of the data set.")] = "train",
    quiet: Quiet = False,
) -> None:
    """Bring a data set of pictures into a form that training and evaluation read quickly."""
    pictures = prepare(source, out, size=size, split=split, progress=not quiet)
    count, channels, height, width = pictures.pixels.shape
    names = pictures.classes if len(pictures.classes) < 12 else [*pictures.classes[:5], "...", pictures.classes[-1]]
    classes = f"{len(pictures.classes)} classes: {', '.join(names)}" if names else "no classes"
    typer.echo(f"{pictures.name}: {count:,} pictures of {channels} x {height} x {width}, {classes}")
    typer.echo(f"{out}: {pictures.pixels.nbytes / 2**20:,.1f} MiB")
