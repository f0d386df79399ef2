"""bespoke pretrain."""

from pathlib import Path
from typing import Annotated

import typer

from bespoke_solvers import data as data_sets
from bespoke_solvers import model_folder
from bespoke_solvers.adapters.diffusers import CHECKPOINT
from bespoke_solvers.cli.common import (
    DryRun,
    FidSamples,
    FidTo,
    InceptionFile,
    Quiet,
    check_folder,
    judge,
    output_folder,
    without_folders,
)
from bespoke_solvers.judge import check_real, check_size
from bespoke_solvers.models import folder_of
from bespoke_solvers.pretrain import read_checkpoint, train
from bespoke_solvers.pretrain_configs import CONFIGS, configuration
from bespoke_solvers.pretrain_plan import Plan


def pretrain(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=f"Configuration: {', '.join(CONFIGS)}.")],
    data: Annotated[Path, typer.Option(help="Folder of the data set, from `bespoke data`.")],
    out: Annotated[Path, typer.Option(help="Folder for the network, its card, checkpoints and sample pictures.")],
    minutes: Annotated[float | None, typer.Option(help="Time to train for, including earlier runs into OUT.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps to train for instead, including earlier runs into OUT.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Number of pictures in a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0.0, help="Peak of the learning-rate schedule.")] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="Start from the weights in this folder of `bespoke pretrain`, with a new schedule."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights, the noise and the order of the pictures.")] = 0,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror half of the pictures; by default all but grey ones.")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Save the weights in float16.")] = False,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="Do not compile the network on the GPU.")] = False,
    fid: FidTo = None,
    fid_samples: FidSamples = 10_000,
    inception: InceptionFile = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Train a flow or diffusion network. If interrupted, the same command resumes the training.

    With --fid, FID is measured along the way; the time that this takes counts towards no limit.
    """
    chosen = configuration(config, batch_size=batch_size, learning_rate=learning_rate, flip=flip)
    first = model_folder.start(folder_of(str(start))) if start else None
    plan = Plan(chosen, data_sets.load(data), steps=steps, minutes=minutes, seed=seed, start=first)
    if fid:
        check_real(fid)
        check_size(fid, plan.shape)
    if dry_run:
        check_folder(out)
        state = read_checkpoint(out / CHECKPOINT, plan.settings)
        size, begun = " x ".join(map(str, plan.shape)), f", from the weights of {start}" if start else ""
        if state:
            begun = f", from step {state['steps']:,} on"
        limit = f"{minutes:g} minutes" if minutes else f"{steps:,} steps"
        typer.echo(f"would train {config} on {plan.data.name}: {len(plan.data):,} pictures of {size}")
        typer.echo(f"for {limit} with {chosen.batch_size} pictures in a step{begun}; output {out}")
        return
    output_folder(out)
    rate = (
        judge(fid, inception, fid_samples, seed, chosen.batch_size, "report", progress=not quiet).fid if fid else None
    )
    typed, compiled = without_folders(), False if no_compile else None
    try:
        record = train(plan, out, half=half, compiled=compiled, rate=rate, command=typed, progress=not quiet)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; give the same command again, and it goes on from its checkpoint", err=True)
        raise typer.Exit(130) from None
    typer.echo(
        f"{out}: {config}, {record['steps']:,} steps, {record['images']:,} pictures seen, "
        f"{record['seconds'] / 60:.1f} minutes, loss {record['losses'][-1][2]:.4f}"
        + (f", FID {record['fid'][-1][2]:.2f}" if "fid" in record else "")
    )
    if steps and record["steps"] > steps:
        typer.echo(f"it had more than --steps {steps} before, so no step was added; give more to go on", err=True)
