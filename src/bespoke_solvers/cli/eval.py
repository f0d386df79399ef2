"""bespoke eval."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import comparison, dedicated, eval_report, portfolio
from bespoke_solvers.bank import GIB, Bank
from bespoke_solvers.cells import Store, name_only
from bespoke_solvers.cli.common import (
    SOLVER,
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
    check_folder,
    evaluations,
    judge,
    of_pipelines,
    output_folder,
    solvers,
    without_folders,
)
from bespoke_solvers.evaluation import held_out
from bespoke_solvers.fid import check_pictures
from bespoke_solvers.judge import FEW, FINE, KEY, STAND_IN, WORTH, check_real, check_size
from bespoke_solvers.models import copies, resolve


def eval(
    model: ModelName,
    solver: Annotated[list[str], typer.Option(help=SOLVER)],
    out: Annotated[Path, typer.Option(help="Folder for report.html, results.json and the pictures.")],
    baselines: Annotated[
        str,
        typer.Option(
            help="Methods to compare with, each on its best time grid: all, none, or a list such as euler,unipc@karras."
        ),
    ] = "euler,midpoint,heun,rk4",
    nfe: Annotated[
        str, typer.Option(help="Numbers of evaluations at which to run the baselines, besides the solver's own.")
    ] = "4,6,8,10,16,20",
    samples: Annotated[int, typer.Option(min=1, help="Number of samples that errors are reported on.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of samples drawn at a time.")] = 32,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Error tolerance of the exact samples.")] = 1e-5,
    bank: Annotated[Path | None, typer.Option(help="Folder where exact samples are kept; by default OUT/bank.")] = None,
    fid: FidTo = None,
    fid_samples: FidSamples = 50_000,
    inception: InceptionFile = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    dry_run: DryRun = False,
    guidance: Guidance = None,
    prompts: Prompts = None,
    size: Size = None,
    dtype: Precision = None,
    offload: Offloading = None,
    quiet: Quiet = False,
) -> None:
    """Compare a solver with other methods on new noise: RMSE and PSNR to the exact samples, in a report with pictures.

    With --fid, also measure how close all samples are to real pictures (FID and KID).
    """
    if len(solver) > 1:
        raise ValueError(
            f"got {len(solver)} files with --solver; compare one at a time, with several NFE in it perhaps"
        )
    if fid:
        check_real(fid)
    more = of_pipelines(prompts, size, dtype, offload)
    costs = evaluations(nfe)
    found, resolved = solvers(solver[0]), resolve(model, guidance, **more)
    if fid:
        check_pictures(resolved)
        if resolved.decode is None:
            check_size(fid, resolved.shape)
    known = {"all": list(dedicated.NAMES), "none": []}
    names = known.get(baselines.strip(), [name.strip() for name in baselines.split(",")])
    methods, _ = comparison.methods(found, names, costs, resolved)
    for each in found:
        each.check(resolved)
    if dry_run:
        check_folder(out)
        cost = sum(table.nfe for tables in methods.values() for table in tables)
        typer.echo(
            f"would compare {', '.join(methods)} on {samples} samples of {model}: {cost * samples:,} evaluations"
        )
        exact = -(-samples // batch_size) * batch_size  # solved in whole batches
        if searched := [(name, table.nfe) for name in methods if name in dedicated.METHODS for table in methods[name]]:
            tried = sum(table.nfe for each in searched for table in portfolio.variants(*each, resolved).values())
            typer.echo(f"to choose time grids on {samples} other samples: {tried * samples:,} evaluations more")
            exact *= 2
        if fid:
            typer.echo(f"on {fid_samples:,} samples for FID: {cost * fid_samples:,} evaluations more")
            if fid_samples < WORTH:
                exact += fid_samples
            else:
                tried = FEW * FINE[0] * len(portfolio.variants(STAND_IN, FINE[0], resolved))
                standing = f"{tried:,} to find a solver that stands for exact ones"
                typer.echo(f"and {standing}, which then takes {FINE[0] * fid_samples:,} or more")
        typer.echo(f"and {exact:,} exact samples, as far as {bank or out / 'bank'} has them not yet")
        typer.echo(f"figures and pictures in {out}")
        return
    by = None
    if fid:
        several = copies(model, guidance, **more)
        by = judge(fid, inception, fid_samples, seed, batch_size, "report", copies=several, progress=not quiet)
    output_folder(out)
    if by:
        by = dataclasses.replace(by, store=Store(out / "fid", KEY, without_folders()))
    kept = Bank(resolved, bank or out / "bank", batch_size=batch_size, budget=4 * GIB, rtol=tolerance, atol=tolerance)
    grids: dict[tuple[str, int], str] = {}
    if any(name in dedicated.METHODS for name in names):
        choose = held_out(kept, "choose", seed, samples, progress=not quiet)
        methods, grids = comparison.methods(found, names, costs, resolved, choose)
    result = comparison.compare(kept, methods, seed, samples, progress=not quiet, judge=by, grids=grids)
    typed = without_folders()  # a report is sent to others
    written = [*comparison.write(result, kept, found, methods, out, typed), out / "report.html"]
    eval_report.write(out / "report.html", result, kept, found, name_only(model), typed)
    typer.echo(comparison.as_text(result))
    for name in names:
        if left_out := {*costs} - {table.nfe for table in methods.get(name, [])}:
            typer.echo(f"{name} cannot have {', '.join(map(str, sorted(left_out)))} evaluations: left out")
    for file in written:
        typer.echo(file)
