"""bespoke paper."""

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bespoke_solvers.adapters.diffusers import TRAINING, read_json
from bespoke_solvers.cells import Store, name_only
from bespoke_solvers.cli.common import InceptionFile, Quiet, command_line, judge, numbers, output_folder
from bespoke_solvers.models import resolve
from bespoke_solvers.paper import figures, plan
from bespoke_solvers.paper.lab import Lab
from bespoke_solvers.paper.plan import FULL, QUICK, Counts, Experiment
from bespoke_solvers.paper.results import Results


def paper(
    model: Annotated[list[str], typer.Argument(metavar="MODEL...", help="One or several models, as in bespoke fit.")],
    out: Annotated[Path, typer.Option(help="A folder for the cells, the report, results.json and the figures.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only the experiment with this label of the paper, fig:3_paths or fig_a:* say; repeatable."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Reduced counts, for minutes on a CPU; what follows changes single ones."),
    ] = False,
    nfe: Annotated[str | None, typer.Option(help="Evaluations of a sample; 8,10,16,20 by default.")] = None,
    paths: Annotated[int | None, typer.Option(min=1, help="Exact paths to fit to.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Of each fit of RK1- and RK2-Bespoke.")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="Of those.")] = None,
    choose: Annotated[int | None, typer.Option(min=1, help="Samples to choose the best iteration by.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to report on.")] = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, help="Of the exact paths.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Paths that are solved and used together.")] = None,
    real: Annotated[
        Path | None, typer.Option(help="Measure FID to this folder of `bespoke data`, or to this .npz of statistics.")
    ] = None,
    fid_samples: Annotated[int | None, typer.Option(min=2, help="Samples for FID.")] = None,
    inception: InceptionFile = None,
    guidance: Annotated[
        list[float] | None,
        typer.Option(help="Study each folder of diffusers with guidance of this scale, too; repeatable."),
    ] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=SECONDS that its training took, where its folder does not say; repeatable."),
    ] = None,
    bank: Annotated[Path | None, typer.Option(help="Folder of exact paths; by default OUT/bank.")] = None,
    device: Annotated[str | None, typer.Option(help="For models in folders; the GPU, where there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides all noise.")] = 0,
    draw: Annotated[bool, typer.Option("--draw", help="Measure nothing: draw what the cells in OUT say.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure the paper's experiments again on models of one's own, and write them up in a report.

    Everything measured is kept in OUT/cells. Interrupted, or asked for more, the same command measures what is missing.
    """
    given: dict[str, Any] = {
        **{"nfe": tuple(sorted(set(numbers(nfe)))) if nfe else None, "paths": paths, "iterations": iterations},
        **{"learning_rate": learning_rate, "choose": choose, "samples": samples, "fid_samples": fid_samples},
        **{"tolerance": tolerance, "batch_size": batch_size},
    }
    counts = (QUICK if quick else FULL)._replace(**{name: value for name, value in given.items() if value is not None})
    experiments = plan.chosen(only or [])
    names = _names(model, guidance or [])
    trained = _trained(training or [], names)
    command = shlex.join(map(name_only, shlex.split(command_line.get())))
    store = Store(out / "cells", plan.KEY, command, say=lambda line: None if quiet else typer.echo(line, err=True))
    if dry_run:
        _tell(store, list(names), experiments, counts, seed, out)
        return
    output_folder(out)
    if not draw:
        labs: dict[str, Lab] = {}
        by = functools.cache(lambda: judge(real, inception, counts.fid_samples, seed, counts.batch_size, "report"))  # type: ignore[arg-type]
        for label, (name, scale) in names.items():
            load = functools.partial(resolve, name, scale, device=device)
            folder, seconds = bank or out / "bank", trained.get(label, _seconds(Path(name)))
            labs[label] = Lab(
                label, load, store, counts, seed, folder, by if real else None, seconds, progress=not quiet, others=labs
            )
        try:
            for lab in labs.values():
                lab.about()
            for experiment in experiments:
                for lab in labs.values():
                    lab.measure(experiment)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted; give the same command again, and it goes on where it stopped", err=True)
            raise typer.Exit(130) from None
    for file in figures.write(Results(store, list(names), experiments, counts, seed), out, command):
        typer.echo(file)


def _names(models: Sequence[str], guidance: Sequence[float]) -> dict[str, tuple[str, float | None]]:
    """The models by the names that their cells have, each with its scale of guidance."""
    found: dict[str, tuple[str, float | None]] = {}
    if guidance and not any(Path(name).is_dir() for name in models):
        raise ValueError(f"guidance {guidance[0]:g} is for models in diffusers' folders; {', '.join(models)} are none")
    for name in models:
        label = Path(name).resolve().name if Path(name).is_dir() else name
        if label in found:
            raise ValueError(f"two models are called {label}; rename a folder, or name each model once")
        found[label] = (name, None)
        if Path(name).is_dir():
            found |= {f"{label}, guidance {scale:g}": (name, scale) for scale in guidance}
    return found


def _trained(training: Sequence[str], names: dict[str, tuple[str, float | None]]) -> dict[str, float]:
    """The seconds of training by model."""
    found: dict[str, float] = {}
    for each in training:
        name, _, seconds = each.rpartition("=")
        if name not in names or not seconds.replace(".", "", 1).isdecimal():
            raise ValueError(f"--training {each}: expected MODEL=SECONDS with one of {', '.join(names)}")
        found |= {label: float(seconds) for label in names if label.split(", guidance ")[0] == name}
    return found


def _seconds(folder: Path) -> float | None:
    """How long `bespoke pretrain` took, if it made the model."""
    return read_json(folder / TRAINING).get("seconds") if (folder / TRAINING).is_file() else None


def _tell(
    store: Store, models: Sequence[str], experiments: Sequence[Experiment], counts: Counts, seed: int, out: Path
) -> None:
    """What would be done."""
    for name, value in counts._asdict().items():
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
