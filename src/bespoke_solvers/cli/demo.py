"""bespoke demo."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import comparison, eval_report, fitting, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.cli.common import Quiet, command_line, output_folder
from bespoke_solvers.evaluation import held_out

MODEL, NFE = "toy:digits-vp", 8
BASELINES = ["euler", "midpoint", "rk4", "ddim", "dpmpp-2m", "unipc"]


def demo(
    out: Annotated[Path, typer.Option(help="A folder for the solver file, the figures and the pictures.")] = Path(
        "out/demo"
    ),
    quiet: Quiet = False,
) -> None:
    """The whole story on a model that comes with the package: fit a solver, compare it, look at it."""
    output_folder(out)
    bank = Bank(toy.load(MODEL), batch_size=128)
    typer.echo(f"Fitting a solver with {NFE} evaluations to {MODEL} (handwritten digits on a VP path) ...")
    solver = fitting.fit(bank.model, nfe=NFE, bank=bank, progress=not quiet)
    solver.save(out / "solver.json")
    choose = held_out(bank, "choose", seed=0, count=256)
    tables = comparison.methods([solver], BASELINES, [4, NFE, 12, 16, 20], bank.model, choose)
    result = comparison.compare(bank, tables, seed=0, samples=256)
    typer.echo("\n" + comparison.as_text(result) + "\n\n" + comparison.headline(result, solver) + "\n")
    for file in [out / "solver.json", *comparison.write(result, bank, [solver], tables, out)]:
        typer.echo(file)
    eval_report.write(out / "report.html", result, bank, [solver], tables, MODEL, command_line.get())
    typer.echo(out / "report.html")
    typer.echo(f"\nLook inside: {os.path.relpath(sys.argv[0])} show {out / 'solver.json'}")
