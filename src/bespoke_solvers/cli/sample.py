"""bespoke sample."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save as to_bytes
from tqdm.auto import tqdm

from bespoke_solvers import pictures
from bespoke_solvers.cli.common import (
    LARGEST_SEED,
    SOLVER,
    DryRun,
    Guidance,
    ModelName,
    Offloading,
    Precision,
    Prompts,
    Quiet,
    Size,
    numbers,
    of_pipelines,
    output_file,
    solver_file,
)
from bespoke_solvers.files import write_atomically
from bespoke_solvers.models import resolve
from bespoke_solvers.solver import load


def sample(
    model: ModelName,
    solver: Annotated[str, typer.Option(help=SOLVER)],
    out: Annotated[
        Path, typer.Option(help="File to write: a picture (.png), or the samples themselves (.safetensors).")
    ],
    seeds: Annotated[str, typer.Option(help="Seeds of the samples, one each: 0-63 or 1,2,5.")] = "0-63",
    nfe: Annotated[
        int | None, typer.Option(help="Which of the file's solvers to use, by its number of evaluations.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of samples drawn at a time.")] = 64,
    guidance: Guidance = None,
    prompts: Prompts = None,
    size: Size = None,
    dtype: Precision = None,
    offload: Offloading = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Draw samples of MODEL with a solver."""
    output_file(out, ".png", ".safetensors")
    chosen, loaded = numbers(seeds, LARGEST_SEED), load(solver_file(solver), nfe)
    resolved = resolve(model, guidance, **of_pipelines(prompts, size, dtype, offload))
    loaded.check(resolved)
    as_picture = out.suffix == ".png"
    if as_picture and resolved.decode is None:
        pictures.check_drawable(resolved.shape)
    one = None if as_picture else resolved.noise([0]).condition
    if isinstance(one, dict) and (taken := {"samples", "seeds"} & one.keys()):
        told = " and ".join(sorted(taken))
        raise ValueError(f"the conditions of {model} are named {told}, as what {out} holds beside them; rename them")
    if dry_run:
        spent = f"{loaded.nfe} evaluations each, {loaded.nfe * len(chosen):,} in all"
        typer.echo(f"would draw {len(chosen)} samples of {model} by {solver}: {spent}; output {out}")
        return
    batches = []
    for i in tqdm(range(0, len(chosen), batch_size), unit="batch", disable=quiet):
        noise = resolved.noise(chosen[i : i + batch_size])
        x1 = loaded.sample(resolved.bind(noise.condition), noise.x0)
        batches.append((resolved.pictures(x1) if as_picture else x1).cpu())
    samples = torch.cat(batches)
    if as_picture:
        pictures.save_samples(samples, out)
    else:
        condition = resolved.noise(chosen).condition
        named = (
            condition if isinstance(condition, dict) else {} if condition is None else {"condition": condition.cpu()}
        )
        write_atomically(out, to_bytes({"samples": samples, "seeds": torch.tensor(chosen)} | named))
    typer.echo(f"{out}: {len(chosen)} samples, {loaded.nfe} evaluations each")
