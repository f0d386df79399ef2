"""What is measured: the paper's experiments by its labels, the methods in them, on how many paths and samples."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from bespoke_solvers import dedicated
from bespoke_solvers.families import BASES, Learn

KEY = ("model", "measured", "method", "nfe", "seed", "budget", "samples", "tolerance", "real")


class Fit(NamedTuple):
    """A method that is fitted: its family, and what is learned."""

    family: str
    learn: Learn = "both"


RK1, RK2, RK4, DPM2, EDM = "RK1", "RK2", "RK4", "DPM-2", "EDM"
RK1_BESPOKE, RK2_BESPOKE, NS = "RK1-Bespoke", "RK2-Bespoke", "NS (ours)"
TIME, SCALE = "RK2-Bespoke, time only", "RK2-Bespoke, scale only"
BASELINES = {RK1: "euler", RK2: "midpoint", RK4: "rk4", DPM2: "dpm-2", EDM: "edm-heun"}
ON_BEST_GRID = (DPM2,)  # its usual grid is none for flows; that of EDM is what EDM is compared by
GRID_SAMPLES = 64  # of the choosing set, to choose time grids by
FITS = {
    RK1_BESPOKE: Fit("rk1"),
    RK2_BESPOKE: Fit("rk2"),
    TIME: Fit("rk2", "time"),
    SCALE: Fit("rk2", "scale"),
    NS: Fit("ns"),
}
BY_ADAM = [name for name, fit in FITS.items() if fit.family in BASES]
OWN = (RK2_BESPOKE, NS)  # what stands out in the figures
EDM_NFE = 35  # at which EDM reaches the FID that the paper compares with


class Counts(NamedTuple):
    """How much is spent: evaluations of a sample, paths to fit to, Adam's iterations and rate, samples to choose the
    best iteration by, samples to report on and for FID; the tolerance of exact paths, and how many go together.

    real: the mark of the real pictures and of the Inception that FID is measured with (`judge.mark`)."""

    nfe: tuple[int, ...] = (8, 10, 16, 20)
    paths: int = 256
    iterations: int = 1000
    learning_rate: float = 2e-3
    choose: int = 256
    samples: int = 1024
    fid_samples: int = 50_000
    tolerance: float = 1e-5
    batch_size: int = 64
    real: str = ""


FULL = Counts()
QUICK = Counts(
    nfe=(8, 10, 20), paths=64, iterations=300, learning_rate=1e-2, choose=128, samples=1024, fid_samples=1000
)


class Experiment(NamedTuple):
    """An experiment: its name, the paper's labels for it, and the methods whose errors it needs.

    fid: whether it is about FID, too. paths: the schedules that it is for; all, if none are named.
    """

    name: str
    labels: tuple[str, ...]
    methods: tuple[str, ...]
    fid: bool = False
    paths: tuple[str, ...] = ()


RK1_VS_RK2 = Experiment(
    "RK1 against RK2",
    ("fig:euler_vs_midpoint", "fig_a:rk1_vs_rk2_imagenet64", "fig_a:rk1_vs_rk2_cifar10"),
    (RK1, RK2, RK1_BESPOKE, RK2_BESPOKE),
)
AGAINST_NFE = Experiment(
    "Error against NFE",
    ("fig:nfe_vs_fid_main", "fig:nfe_vs_fid_cifar10", "fig:nfe_vs_psnr_imagenet", "fig:nfe_vs_metrics_afhq"),
    (RK1, RK2, RK4, DPM2, RK2_BESPOKE, NS),
    fid=True,
)
TABLES = Experiment(
    "FID in tables",
    ("tab:cifar10_comprison", "tab:cifar10_a", "tab:imagenet_64_and_128"),
    (RK2_BESPOKE, NS),
    fid=True,
)
AGAINST_EDM = Experiment(
    "Against EDM",
    ("fig:bes_vs_edm",),
    (RK1, EDM, RK2_BESPOKE),
    fid=True,
    paths=("VP", "DiscreteVP"),
)
ITERATIONS = Experiment("Error against iterations", ("fig:rmse_vs_iteration_imagenet",), (RK2_BESPOKE,))
ABLATION = Experiment("Time and scale", ("fig_a:scale_time_ablation",), (RK2, RK2_BESPOKE, TIME, SCALE), fid=True)
TRANSFER = Experiment("Transfer", ("fig_a:transferred_ablation",), (RK2, RK2_BESPOKE), fid=True)
THETA = Experiment(
    "Learned theta",
    ("fig_a:scheme_imagenet128", "fig_a:scheme_imagenet64", "fig_a:scheme_cifar10"),
    (RK2_BESPOKE,),
)
SAMPLES = Experiment(
    "Samples",
    (
        *("fig:imagenet-64", "fig:imagenet-64-dpm2", "fig:imagenet-128", "fig:afhq_a", "fig:imagenet_128_a_1"),
        *("fig:imagenet_128_a_2", "fig:imagenet64_fm_ot_a", "fig:imagenet64_fm_cs_a", "fig:imagenet64_eps_pred_a"),
    ),
    (RK2, DPM2, RK2_BESPOKE, NS),
)
PATHS = Experiment("Sampling paths", ("fig:3_paths",), (RK2, RK2_BESPOKE))
EXPERIMENTS = (*(SAMPLES, PATHS, RK1_VS_RK2, AGAINST_NFE, TABLES, AGAINST_EDM, ITERATIONS, ABLATION, TRANSFER, THETA),)


def chosen(only: Sequence[str]) -> list[Experiment]:
    """The experiments whose labels match a pattern, `fig:3_paths` or `fig_a:scheme_*` say; all, if none is given."""
    for pattern in only:
        if not any(fnmatchcase(label, pattern) for each in EXPERIMENTS for label in each.labels):
            known = ", ".join(label for each in EXPERIMENTS for label in each.labels)
            raise ValueError(f"the paper has no experiment {pattern!r}; expected one of {known}, or a pattern with *")
    return [
        each
        for each in EXPERIMENTS
        if not only or any(fnmatchcase(label, pattern) for label in each.labels for pattern in only)
    ]


def evaluations(method: str, nfe: Sequence[int]) -> list[int]:
    """Those that a method can have: EDM takes one more, and the paper's 35; others leave out what they cannot have."""
    if source_of(method):
        method = RK2_BESPOKE
    if method == EDM:
        return sorted({*(n + 1 - n % 2 for n in nfe), EDM_NFE})
    if method in FITS:
        base = BASES.get(FITS[method].family)
        return [n for n in nfe if base is None or n % base.stages == 0]
    return [n for n in nfe if method not in BASELINES or dedicated.possible(BASELINES[method], n)]


def paths_at(nfe: Sequence[int]) -> int | None:
    """The evaluations of the sampling paths that are shown: the paper's 10, or the fewest there are."""
    possible = evaluations(RK2_BESPOKE, nfe)
    return 10 if 10 in possible else min(possible, default=None)


def transferred(source: str) -> str:
    """The name of the method that is another model's RK2-Bespoke."""
    return f"{RK2_BESPOKE} of {source}"


def source_of(method: str) -> str | None:
    """The model that a transferred solver comes from."""
    before, of, source = method.partition(f"{RK2_BESPOKE} of ")
    return source if of and not before else None


def budget(method: str, counts: Counts) -> str:
    """What a fit, or the choice of a grid, may spend, in words; other methods have none."""
    if source_of(method):
        method = RK2_BESPOKE
    if method in ON_BEST_GRID:
        return f"grid chosen on {min(counts.choose, GRID_SAMPLES)}"
    if method not in FITS:
        return ""
    spent = f"{counts.paths} paths, {counts.batch_size} at a time, {counts.choose} to choose by"
    if method in BY_ADAM:
        spent += f", {counts.iterations} iterations at {counts.learning_rate:g}"
    return spent


def key(model: str, measured: str, method: str, nfe: int, seed: int, counts: Counts) -> dict[str, Any]:
    """The key of a cell."""
    samples = {"fid": counts.fid_samples, "fit": counts.choose}.get(measured, counts.samples)
    real = counts.real if measured == "fid" else ""
    values = (model, measured, method, nfe, seed, budget(method, counts), samples, counts.tolerance, real)
    return dict(zip(KEY, values, strict=True))


def file_name(name: str) -> str:
    """A name as that of a file."""
    return re.sub("[^A-Za-z0-9_.-]+", "-", name).strip("-")
