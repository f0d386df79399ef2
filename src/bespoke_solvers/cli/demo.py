"""bespoke demo."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import comparison, eval_report, fitting, solver, zoo
from bespoke_solvers.bank import Bank
from bespoke_solvers.cli.common import Quiet, command_line, output_folder
from bespoke_solvers.models import resolve
from bespoke_solvers.velocity import Counter

MODEL, NFE = "zoo:cifar10-fm-ot", 8
BASELINES = ["midpoint", "dpmpp-2m@karras:0.03", "ipndm@log-snr:0.05"]  # on the grids that are best for them here
PATHS, CHOOSE, REPORT = 32, 8, 16
BATCH, TOLERANCE = 8, 3e-4


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the solver file, the figures and the pictures.")] = Path(
        "out/demo"
    ),
    quiet: Quiet = False,
) -> None:
    """See it work on a network that comes with the package: fit a solver, compare it, look at the pictures."""
    output_folder(out)
    model = resolve(MODEL)
    counter = Counter(model.velocity)
    bank = Bank(dataclasses.replace(model, velocity=counter), batch_size=BATCH, rtol=TOLERANCE, atol=TOLERANCE)
    typer.echo(f"Fitting a solver with {NFE} evaluations to {MODEL} (a flow network, trained on CIFAR-10) ...")
    fitted = fitting.fit(
        bank.model, nfe=NFE, effort="low", paths=PATHS, validation_paths=CHOOSE, bank=bank, progress=not quiet
    )
    fitted.save(out / "solver.json")
    solvers = [fitted, solver.load(zoo.folder(MODEL) / zoo.RK2_BESPOKE, NFE)]
    tables, _ = comparison.methods(solvers, BASELINES, [NFE], bank.model)
    result = comparison.compare(bank, tables, seed=0, samples=REPORT)
    written = [
        out / "solver.json",
        *comparison.write(result, bank, solvers, tables, out, command_line.get()),
        out / "report.html",
    ]
    eval_report.write(out / "report.html", result, bank, solvers, MODEL, command_line.get())
    typer.echo("\n" + comparison.as_text(result) + "\n\n" + comparison.headline(result, fitted) + "\n")
    for file in written:
        typer.echo(file)
    typer.echo(f"\nAll of it took {counter.evaluations:,} evaluations of the network.")
    typer.echo(f"Look inside: {os.path.relpath(sys.argv[0])} show {out / 'solver.json'}")
    typer.echo("A solver for your own model: docs/own-model.md in the repository.")
