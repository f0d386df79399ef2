"""The command `bespoke`: one file per command, no logic of its own."""

from typing import Annotated

import typer

import bespoke_solvers

app = typer.Typer(
    name="bespoke",
    help="Tiny custom ODE solvers for pre-trained diffusion and flow models.",
    no_args_is_help=True,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bespoke-solvers {bespoke_solvers.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tiny custom ODE solvers for pre-trained diffusion and flow models."""
