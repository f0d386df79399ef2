"""bespoke paper."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bespoke_solvers.adapters.diffusers import TRAINING, read_json
from bespoke_solvers.cells import Store
from bespoke_solvers.cli.common import (
    DryRun,
    InceptionFile,
    Quiet,
    check_folder,
    evaluations,
    judge,
    output_folder,
    without_folders,
)
from bespoke_solvers.judge import check_real, check_size, mark
from bespoke_solvers.model_folder import trainings
from bespoke_solvers.models import copies, folder_of, resolve
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.lab import EXACT, Lab
from bespoke_solvers.paper.plan import FULL, QUICK, Counts, Experiment
from bespoke_solvers.paper.results import Results


def paper(
    model: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="One or more models, named as in `bespoke fit`.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the measurements (cells), the report, results.json and the figures.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only the experiments with this label in the paper, such as fig:3_paths or fig_a:*; repeatable."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Reduced counts: minutes on a CPU with a toy. The options below still override single counts.",
        ),
    ] = False,
    nfe: Annotated[
        str | None, typer.Option(help="Numbers of evaluations to compare at; 8,10,16,20 by default.")
    ] = None,
    paths: Annotated[int | None, typer.Option(min=1, help="Number of exact paths to fit to.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations of each RK1- and RK2-Bespoke fit.")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="Adam's learning rate in these fits.")] = None,
    choose: Annotated[
        int | None, typer.Option(min=1, help="Number of samples that the best iteration is chosen on.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of samples that errors are reported on.")] = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, help="Error tolerance of the exact paths.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Number of paths that are solved and fitted at a time.")
    ] = None,
    real: Annotated[
        Path | None,
        typer.Option(
            help="Measure FID against the pictures in this folder (from `bespoke data`) or the statistics in this .npz."
        ),
    ] = None,
    fid_samples: Annotated[int | None, typer.Option(min=2, help="Number of samples that FID is measured on.")] = None,
    inception: InceptionFile = None,
    guidance: Annotated[
        list[float] | None,
        typer.Option(help="Run everything with this guidance scale as well, on models that support it; repeatable."),
    ] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=SECONDS: how long its training took, if its folder does not say; repeatable."),
    ] = None,
    bank: Annotated[Path | None, typer.Option(help="Folder where exact paths are kept; by default OUT/bank.")] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Most GiB that the exact paths of one model may take.")] = 16.0,
    device: Annotated[
        str | None, typer.Option(help="Device for models from folders; by default a GPU if there is one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 0,
    draw: Annotated[
        bool, typer.Option("--draw", help="Measure nothing; write the report from the cells in OUT.")
    ] = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's experiments on your own models, and write a report.

    Everything measured is kept in OUT/cells; if interrupted or asked for more, only what is missing is measured.
    """
    given: dict[str, Any] = {
        "nfe": tuple(evaluations(nfe)) if nfe else None,
        "paths": paths,
        "iterations": iterations,
        "learning_rate": learning_rate,
        "choose": choose,
        "samples": samples,
        "fid_samples": fid_samples,
        "tolerance": tolerance,
        "batch_size": batch_size,
    }
    counts = (QUICK if quick else FULL)._replace(**{name: value for name, value in given.items() if value is not None})
    experiments = plan.chosen(only or [])
    names = _names(model, guidance or [], draw)
    trained = {label: seconds for label, (name, _) in names.items() if (seconds := _seconds(folder_of(name)))}
    trained |= _trained(training or [], names)
    command = without_folders()
    store = Store(out / "cells", plan.KEY, command, say=lambda line: None if quiet else typer.echo(line, err=True))
    if real:
        check_real(real)
    if dry_run:
        check_folder(out)
        for name, scale in names.values() if not draw else ():
            resolve(name, scale, device=device)
        _tell(store, list(names), experiments, counts, seed, out)
        return
    if draw and (missing := [name for name in names if not any(store.of(name))]):
        if len(missing) == len(names):
            raise ValueError(f"{out} has no cells of {', '.join(missing)}; measure them first, without --draw")
        typer.echo(f"left out, of which {out} has no cells: {', '.join(missing)}", err=True)
        names = {name: names[name] for name in names if name not in missing}
    output_folder(out)
    known = {record["real"] for name in names for record in store.of(name) if record["measured"] == "fid"}
    by = None
    if real and (not draw or len(known) > 1):
        by = judge(real, inception, counts.fid_samples, seed, counts.batch_size, "report", progress=not quiet)
    elif len(known) > 1:
        raise ValueError(
            f"FID in {out} was measured to {len(known)} sets of pictures; say which by --real, --inception"
        )
    counts = counts._replace(real=mark(real, by.features) if real and by else next(iter(known), ""))
    failed: list[str] = []
    if not draw:
        labs: dict[str, Lab] = {}
        for label, (name, scale) in names.items():
            resolved = resolve(name, scale, device=device)
            if real and resolved.decode is None:
                check_size(real, resolved.shape)
            several = copies(name, scale) if by and device is None else []
            own, there = by and dataclasses.replace(by, copies=several), bank or out / "bank"
            try:
                labs[label] = Lab(label, resolved, store, counts, seed, there, own, budget, not quiet, others=labs)
            except ValueError as error:
                raise ValueError(f"{label}: {error}") from error
        try:
            failed = _measure(labs, experiments)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; give the same command again, and it goes on where it stopped", err=True)
            raise typer.Exit(130) from None
        names = {label: names[label] for label in labs}
    if names:
        results = Results(store, list(names), experiments, counts, seed, training=trained, failed=failed)
        for file in figures.write(results, out, command):
            typer.echo(file)
    for line in failed:
        typer.echo(f"failed: {line}", err=True)
    if failed:
        raise typer.Exit(1)


def _measure(labs: dict[str, Lab], experiments: Sequence[Experiment]) -> list[str]:
    """Measure all cells; returns what failed, in words. Models whose exact samples fail are taken out of `labs`."""
    every = dict(labs)
    for label, lab in every.items():
        with lab.going_on(EXACT, 0):
            lab.about()
        if lab.failed:
            del labs[label]
    for experiment in experiments:
        for lab in labs.values():
            lab.measure(experiment)
    return [
        f"{label}, {nfe} NFE, {method}: {why}"
        for label, lab in every.items()
        for (method, nfe), why in lab.failed.items()
    ]


def _names(models: Sequence[str], guidance: Sequence[float], draw: bool) -> dict[str, tuple[str, float | None]]:
    """The models by the names that their cells have, each with its scale of guidance; to draw, folders may be gone."""
    found: dict[str, tuple[str, float | None]] = {}
    folders = [name for name in models if folder_of(name).is_dir() or (draw and ("/" in name or ":" not in name))]
    if guidance and not folders:
        raise ValueError(f"guidance {guidance[0]:g} is for models in diffusers' folders; {', '.join(models)} are none")
    for name in models:
        label = Path(os.path.abspath(name)).name
        if any(plan.file_name(label) == plan.file_name(other) for other in found):
            raise ValueError(f"two models are called {label}, or alike in names of files; rename one, or name it once")
        found[label] = (name, None)
        if name in folders:
            found |= {f"{label}, guidance {scale:g}": (name, scale) for scale in guidance}
    return found


def _trained(training: Sequence[str], names: dict[str, tuple[str, float | None]]) -> dict[str, float]:
    """The seconds of training by model."""
    found: dict[str, float] = {}
    for each in training:
        name, _, seconds = each.rpartition("=")
        if name not in names or not seconds.replace(".", "", 1).isdecimal() or not float(seconds):
            raise ValueError(f"--training {each}: expected MODEL=SECONDS, over 0, with one of {', '.join(names)}")
        found |= {label: float(seconds) for label in names if label.split(", guidance ")[0] == name}
    return found


def _seconds(folder: Path) -> float | None:
    """How long `bespoke pretrain` took, if it made the model, with the trainings that this one began from."""
    if not (folder / TRAINING).is_file():
        return None
    return sum(each.get("seconds") or 0.0 for each in trainings(read_json(folder / TRAINING))) or None


def _tell(
    store: Store, models: Sequence[str], experiments: Sequence[Experiment], counts: Counts, seed: int, out: Path
) -> None:
    """What would be done."""
    for name, value in counts._asdict().items():
        if name != "real":  # a mark that is made of the pictures themselves
            typer.echo(f"{name.replace('_', ' '):<14} {', '.join(map(str, value)) if name == 'nfe' else value}")
    for experiment in experiments:
        typer.echo(f"{experiment.name:<24} {', '.join(experiment.labels)}")
    fitted = {method for each in experiments for method in each.methods if method in plan.FITS}
    keys = [
        plan.key(model, "fit", method, nfe, seed, counts)
        for model in models
        for method in fitted
        for nfe in plan.evaluations(method, counts.nfe)
    ]
    missing = sum(store.get(key) is None for key in keys)
    typer.echo(f"{missing} of {len(keys)} fits are still to do, for {', '.join(models)}")
    typer.echo(f"cells, report and figures in {out}")
