"""bespoke fit."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bespoke_solvers import families, fitting
from bespoke_solvers.bank import GIB, Bank
from bespoke_solvers.cli.common import ModelName, Quiet, output_file
from bespoke_solvers.models import resolve


def fit(
    model: ModelName,
    nfe: Annotated[int, typer.Option(help="Evaluations of the model that a sample may cost.")],
    out: Annotated[Path, typer.Option(help="The solver file to write (JSON).")],
    family: Annotated[Literal["rk2", "rk1"], typer.Option(help="What kind of solver.")] = "rk2",
    objective: Annotated[Literal["bound"], typer.Option(help="What the fit minimises: the paper's bound.")] = "bound",
    learn: Annotated[Literal["both", "time", "scale"], typer.Option(help="Which of the transforms to learn.")] = "both",
    paths: Annotated[int, typer.Option(min=1, help="Exact paths to fit to, solved once and kept.")] = 256,
    fresh: Annotated[bool, typer.Option("--fresh", help="New paths in every iteration, as the paper does.")] = False,
    iterations: Annotated[int, typer.Option(min=0, help="Steps of Adam.")] = 1000,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Of Adam.")] = 2e-3,
    validation_paths: Annotated[int, typer.Option(min=1, help="Samples to choose by, and as many to report on.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Paths that are solved and used together.")] = 32,
    bank: Annotated[
        Path | None,
        typer.Option(
            help="Folder of exact paths, used again by every fit for this model; by default MODEL.bank beside OUT."
        ),
    ] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="The most GiB that the bank may take.")] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides all noise.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a solver for MODEL. An interrupted fit goes on where it was when the same command is given again."""
    output_file(out, ".json")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already; give another --out, or --overwrite to replace it")
    learner = families.make(family, nfe, learn)
    resolved = resolve(model)
    folder = bank or out.parent / (model.replace(":", "-").replace(".", "-") + ".bank")
    checkpoint = out.with_name(out.name + ".checkpoint")
    if dry_run:
        parameters = sum(p.numel() for p in learner.parameters() if p.requires_grad)
        typer.echo(f"model       {model}: samples of {resolved.shape}, {resolved.prediction}, {resolved.schedule}")
        typer.echo(f"solver      {family}, {nfe} evaluations, {parameters} numbers to learn")
        typer.echo(f"paths       {'new ones each time' if fresh else paths} in batches of {batch_size}, in {folder}")
        typer.echo(f"evaluations {iterations * nfe * batch_size:,} forward and backward, and the exact paths")
        typer.echo(f"output      {out}; until it is there, {checkpoint.name} beside it")
        return
    if checkpoint.exists():
        typer.echo(f"going on from {checkpoint}", err=True)
    try:
        solver = fitting.fit(
            resolved,
            nfe=nfe,
            family=learner,
            objective=objective,
            seed=seed,
            paths=None if fresh else paths,
            iterations=iterations,
            learning_rate=learning_rate,
            validation_paths=validation_paths,
            bank=Bank(resolved, folder, batch_size=batch_size, budget=int(budget * GIB)),
            checkpoint=checkpoint,
            progress=not quiet,
        )
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; give the same command again, and it goes on from its last checkpoint", err=True)
        raise typer.Exit(130) from None
    solver.save(out)
    checkpoint.unlink(missing_ok=True)
    v = solver.validation
    typer.echo(
        f"{out}: {family}, {nfe} NFE, RMSE {v['rmse']:.4f} ({v['psnr']:.1f} dB); {v['baseline']} at the same cost "
        f"{v['baseline_rmse']:.4f} ({v['baseline_psnr']:.1f} dB); exact: {v['reference_evaluations']:.0f} NFE"
    )
