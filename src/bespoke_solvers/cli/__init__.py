"""The command `bespoke`: one file per command, no logic of its own."""

import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import bespoke_solvers
from bespoke_solvers.bank import BankFullError
from bespoke_solvers.cli import application, data, demo, eval, fit, paper, pretrain, sample, show
from bespoke_solvers.cli.common import command_line
from bespoke_solvers.reference import NotSolvedError

app = typer.Typer(
    name="bespoke",
    help="Tiny custom ODE solvers for pre-trained diffusion and flow models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"bespoke-solvers {bespoke_solvers.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    whole: Annotated[bool, typer.Option("--traceback", help="Show the Python traceback of an error.")] = False,
) -> None:
    """Tiny custom ODE solvers for pre-trained diffusion and flow models."""


for command in (
    *(demo.demo, fit.fit, sample.sample, eval.eval, show.show, data.data, pretrain.pretrain, paper.paper),
    application.app,
):
    app.command()(command)


def _elsewhere(error: BaseException) -> str:
    """Where an error comes from that is not raised in this package, in the network of a user, say."""
    *_, last = traceback.extract_tb(error.__traceback__)
    ours = Path(last.filename).is_relative_to(Path(bespoke_solvers.__file__).parent)
    return "" if ours else f" ({last.filename}, line {last.lineno}; `bespoke --traceback ...` shows the way there)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what the user can mend ends in one sentence and the exit status 1."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    whole = "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    command_line.set(shlex.join(["bespoke", *arguments]))
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    try:
        app(args=arguments)
    except (ValueError, OSError, BankFullError, NotSolvedError) as error:
        if whole:
            raise
        print("error:", " ".join(str(error).split()) + _elsewhere(error), file=sys.stderr)
        raise SystemExit(1) from None
