"""What the commands share: the reading of their arguments."""

import os
import shlex
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from bespoke_solvers import hub, inception, zoo
from bespoke_solvers.adapters.pipelines import Offload, read_prompts
from bespoke_solvers.cells import name_only
from bespoke_solvers.judge import Judge, mark, real_pictures
from bespoke_solvers.metrics import decimals
from bespoke_solvers.solver import Solver, read, solvers_in
from bespoke_solvers.velocity import Model, NoiseSet

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"{', '.join(zoo.NAMES)}, toy:digits, toy:checkerboard (with -fm-v-cs, -vp or -edm for another path), a "
        "diffusers folder, or package.module:name of a Model or of a function that returns one.",
    ),
]
SOLVER = "A solver file, a folder with one, a repository on the Hugging Face Hub (user/name), or zoo:NAME."
Guidance = Annotated[
    float | None,
    typer.Option(
        help="Scale of classifier-free guidance, where MODEL supports it; pipelines have a default of their own."
    ),
]
Prompts = Annotated[Path | None, typer.Option(help="Pipelines: a file of prompts to draw from, one a line.")]
Size = Annotated[int | None, typer.Option(min=1, help="Pipelines: width and height of the pictures in pixels.")]
Precision = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    typer.Option("--dtype", help="Pipelines: precision of the network; float32 by default."),
]
Offloading = Annotated[
    Offload | None,
    typer.Option("--offload", help="Pipelines: keep idle networks (model) or idle layers (sequential) on the CPU."),
]
FidTo = Annotated[
    Path | None,
    typer.Option(
        help="Measure FID against the pictures in this folder (from `bespoke data`) or the statistics in this .npz."
    ),
]
FidSamples = Annotated[int, typer.Option(min=2, help="Number of samples that FID is measured on.")]
InceptionFile = Annotated[
    Path | None, typer.Option(help="File with the weights of the Inception network; downloaded once by default.")
]
MANY = 1_000_000
LARGEST_SEED = 2**32 - 1  # more bits PyTorch's generator does not take, and draws the same again
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print what would be done, and stop.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress bars.")]
# What was typed, for provenance; `main` sets it, and where the commands are called otherwise it is not known.
command_line: ContextVar[str] = ContextVar("command_line", default="bespoke ...")


def without_folders() -> str:
    """What was typed, without the folders of this machine: for files that travel."""
    return shlex.join(map(name_only, shlex.split(command_line.get())))


def of_pipelines(
    prompts: Path | None, size: int | None, precision: str | None, offload: Offload | None
) -> dict[str, Any]:
    """What these options say to `models.resolve`."""
    texts = read_prompts(prompts) if prompts else []
    dtype = getattr(torch, precision) if precision else None
    return {"prompts": texts, "size": size, "dtype": dtype, "offload": offload}


def evaluations(text: str) -> list[int]:
    """What --nfe says, each number once."""
    try:
        found = sorted(set(numbers(text)))
    except ValueError as error:
        raise ValueError(f"--nfe: {error}") from None
    if found[0] < 1:
        raise ValueError(f"--nfe {text}: a sample takes 1 evaluation or more")
    return found


def numbers(text: str, most: int = 1000) -> list[int]:
    """`0-3,8` -> [0, 1, 2, 3, 8], none of them above `most`, and at most MANY at once."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is no list of numbers; expected for example 10, 8,10,16 or 0-63")
        if dash and int(last) < int(first):
            raise ValueError(f"{part!r} runs backwards; expected the smaller number first")
        if int(last if dash else first) > most:
            raise ValueError(f"{part!r} goes beyond {most:,}; expected numbers up to that")
        if dash and int(last) - int(first) >= MANY:
            raise ValueError(f"{part!r} is more than {MANY:,} numbers; give them in parts")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return found


def output_file(path: Path, *endings: str) -> Path:
    """The path, if a file can be written there; said before the work, not after it."""
    if path.suffix not in endings:
        raise ValueError(f"the output {path} must end in {' or '.join(endings)}")
    if path.is_dir():
        raise ValueError(f"the output {path} is a folder; expected the name of a file")
    if path.parent.exists() and not path.parent.is_dir():
        raise ValueError(f"{path.parent} is a file; expected a folder for the output {path.name}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the output {path.name}; make it first")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"the output {path} cannot be written; choose another place or change its permissions")
    return path


def check_folder(path: Path) -> None:
    """Refuse a file in the place of a folder."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"the output {path} is a file; expected a folder")


def output_folder(path: Path) -> Path:
    """The folder, made if need be."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output folder {path} cannot be made ({error.strerror}); choose another place") from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"the output folder {path} cannot be written; choose another place or change its permissions")
    return path


def judge(
    to: Path,
    weights: Path | None,
    count: int,
    seed: int,
    batch_size: int,
    noise_set: NoiseSet,
    *,
    progress: bool,
    copies: Sequence[Model] = (),
) -> Judge:
    """What measures FID and KID to real pictures; commands look for these first (`check_real`), before any download."""
    features = inception.load(weights)
    real = real_pictures(to, features, progress)
    to_what = mark(to, features)
    return Judge(real, features, count, seed, batch_size, noise_set, copies=copies, progress=progress, to=to_what)


def in_figures(validation: dict[str, Any]) -> str:
    """The quality of a solver, beside that of its base method and with the cost of the exact samples where it says."""

    def shown(prefix: str) -> str:
        rmse, psnr = validation.get(f"{prefix}rmse"), validation.get(f"{prefix}psnr")
        return "no finite samples" if rmse is None or psnr is None else f"{decimals(rmse)} ({psnr:.1f} dB)"

    told = [f"RMSE {shown('')}"]
    if "baseline" in validation:
        told.append(f"{validation['baseline']} at the same cost {shown('baseline_')}")
    if "reference_evaluations" in validation:
        told.append(f"exact: {validation['reference_evaluations']:.0f} NFE")
    own, other = validation.get("rmse"), validation.get("baseline_rmse")
    if own is not None and own == other:
        told.append(
            "nothing was learned: no step was better than where the fit began; give it more --iterations or --paths"
        )
    elif own is not None and other is not None and own > other:
        told.append(
            "not closer in RMSE: fit to more paths (--paths), or for longer (ns: --effort, others: --iterations)"
        )
    return "; ".join(told)


def solver_file(name: str) -> Path:
    """The file of that name, of a folder or of a repository; that of `zoo:NAME` holds the paper's solvers for it."""
    return zoo.folder(name) / zoo.RK2_BESPOKE if name.startswith(zoo.PREFIX) else hub.find(name)


def solvers(name: str) -> list[Solver]:
    """All solvers of a file."""
    path = solver_file(name)
    return list(solvers_in(read(path), str(path)).values())
