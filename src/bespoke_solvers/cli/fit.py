"""bespoke fit."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from bespoke_solvers import dedicated, families, fitting, portfolio
from bespoke_solvers.bank import GIB, Bank
from bespoke_solvers.cli.common import (
    DryRun,
    FidSamples,
    FidTo,
    Guidance,
    InceptionFile,
    ModelName,
    Offloading,
    Precision,
    Prompts,
    Quiet,
    Size,
    evaluations,
    in_figures,
    judge,
    of_pipelines,
    output_file,
)
from bespoke_solvers.description import describe
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.fid import check_pictures
from bespoke_solvers.judge import check_real, check_size
from bespoke_solvers.models import copies, resolve
from bespoke_solvers.solver import save
from bespoke_solvers.table import Table


def fit(
    model: ModelName,
    nfe: Annotated[
        str,
        typer.Option(help="Number of model evaluations per sample: 8, or several such as 4-10 or 5,8,10."),
    ],
    out: Annotated[Path, typer.Option(help="Solver file to write (.json).")],
    family: Annotated[
        Literal["ns", "rk2", "rk1"],
        typer.Option(help="Family of solvers: non-stationary (ns), RK2-Bespoke (rk2) or RK1-Bespoke (rk1)."),
    ] = "ns",
    effort: Annotated[
        Literal["low", "medium", "high"] | None,
        typer.Option(help="How thorough a fit of ns is, from seconds to minutes; medium by default."),
    ] = None,
    objective: Annotated[
        Literal["closed-form", "projection", "endpoint", "bound"] | None,
        typer.Option(
            help="ns: the last stage to run, one of the first three. rk1, rk2: the loss, one of the last two."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="ns: start from a baseline such as dpmpp-2m@karras, or from the best of all baselines (best)."
        ),
    ] = None,
    learn: Annotated[
        Literal["both", "time", "scale"], typer.Option(help="rk1, rk2: learn time, scale, or both.")
    ] = "both",
    paths: Annotated[
        int | None, typer.Option(min=1, help="Number of exact paths to fit to; they are solved once and kept.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Solve new paths in every iteration, as the paper does (bound only).")
    ] = False,
    iterations: Annotated[int | None, typer.Option(min=0, help="Most steps of the last stage.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=0.0, help=f"Adam's learning rate (bound only); {fitting.LEARNING_RATE:g} by default."),
    ] = None,
    validation_paths: Annotated[
        int | None,
        typer.Option(min=1, help="Number of samples to choose the best step by; as many others are reported on."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of paths that are solved and fitted at a time.")] = 32,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Error tolerance of the exact paths.")] = 1e-5,
    bank: Annotated[
        Path | None,
        typer.Option(
            help="Folder where exact paths are kept for later fits to this model; by default MODEL.bank beside OUT."
        ),
    ] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Most GiB that the bank may take.")] = 4.0,
    fid: FidTo = None,
    fid_samples: FidSamples = 10_000,
    inception: InceptionFile = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    dry_run: DryRun = False,
    guidance: Guidance = None,
    prompts: Prompts = None,
    size: Size = None,
    dtype: Precision = None,
    offload: Offloading = None,
    quiet: Quiet = False,
) -> None:
    """Fit a solver to MODEL. If interrupted, the same command resumes the fit.

    With --fid, the step with the lowest FID is kept, not the one closest to the exact samples.
    """
    output_file(out, ".json")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already; give another --out, or --overwrite to replace it")
    if fresh and paths is not None:
        raise ValueError(f"--fresh solves new paths in every iteration; --paths {paths} does not go with it")
    if fid:
        check_real(fid)
    more = of_pipelines(prompts, size, dtype, offload)
    resolved = resolve(model, guidance, **more)
    if fid:
        check_pictures(resolved)
        if resolved.decode is None:
            check_size(fid, resolved.shape)
    costs = evaluations(nfe)
    if wrong := [n for n in costs if family == "rk2" and n % 2]:
        raise ValueError(f"rk2 has an even number of evaluations, two for each step; got {', '.join(map(str, wrong))}")
    learners = {n: families.make(family, n, learn, resolved.scales_noise) for n in costs}
    for n, learner in learners.items():
        stages = fitting.stages_of(learner, objective, effort, start is not None, fresh, learning_rate)
        fitting.amounts(resolved, learner, objective, effort, stages, "fresh" if fresh else paths, iterations)
        if start not in (None, "best"):
            dedicated.baseline(start, n, resolved)
    guided = None if resolved.guidance is None else f"w{resolved.guidance:g}"
    label = " ".join(str(part) for part in (Path(model).name, resolved.conditions, guided, size, dtype) if part)
    folder = bank or out.parent / (re.sub("[:., ]+", "-", label) + ".bank")
    if dry_run:
        describe(resolved)  # which refuses a velocity that fails
        typer.echo(f"model       {model}: samples of {resolved.shape}, {resolved.prediction}, {resolved.schedule}")
        for n, learner in learners.items():
            parameters = sum(p.numel() for p in learner.parameters() if p.requires_grad)
            typer.echo(f"solver      {family}, {n} evaluations, {parameters} numbers to learn: {', '.join(stages)}")
        counted = "new ones each time" if fresh else paths or fitting.paths_of(resolved, learner, effort)
        typer.echo(f"paths       {counted}, {batch_size} at a time, in {folder}")
        typer.echo(f"output      {out}; until it is there, checkpoints beside it")
        return
    kept = Bank(resolved, folder, batch_size=batch_size, budget=int(budget * GIB), rtol=tolerance, atol=tolerance)

    by = None
    if fid:
        several = copies(model, guidance, **more)
        by = judge(fid, inception, fid_samples, seed, batch_size, "choose", copies=several, progress=not quiet)

    def begin(n: int) -> Table | None:
        if start == "best":
            count = validation_paths or fitting.enough(resolved, fitting.VALIDATION_PATHS)
            choose = held_out(kept, "choose", seed, count, progress=not quiet)
            found = portfolio.best(list(dedicated.NAMES), n, resolved, choose)
            if found:
                typer.echo(f"{n} NFE begins at {found.name}, RMSE {found.quality.rmse:.4f}", err=True)
            return found and found.table
        return None if start is None else dedicated.baseline(start, n, resolved)

    solvers, checkpoints = [], []
    for n, learner in learners.items():
        checkpoints.append(out.with_name(f"{out.name}.{n}.checkpoint"))
        if checkpoints[-1].exists():
            typer.echo(f"going on from {checkpoints[-1]}", err=True)
        try:
            solvers.append(
                fitting.fit(
                    resolved,
                    nfe=n,
                    family=learner,
                    objective=objective,
                    effort=effort,
                    start=begin(n),
                    seed=seed,
                    paths="fresh" if fresh else paths,
                    iterations=iterations,
                    learning_rate=learning_rate,
                    validation_paths=validation_paths,
                    bank=kept,
                    rate=by.fid if by else None,
                    checkpoint=checkpoints[-1],
                    progress=not quiet,
                )
            )
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; give the same command again, and it goes on from its last checkpoint", err=True)
            raise typer.Exit(130) from None
    save(solvers, out)
    for checkpoint in checkpoints:
        checkpoint.unlink(missing_ok=True)
    for solver in solvers:
        typer.echo(f"{out}: {family}, {solver.nfe} NFE, {in_figures(solver.validation)}")
