"""Fits: exact paths, a chain of stages, and what comes out of it with its provenance."""

import copy
import dataclasses
import functools
import math
import numbers
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bespoke_solvers import __version__, families
from bespoke_solvers.bank import Bank, Batches
from bespoke_solvers.description import describe, digest, network_time
from bespoke_solvers.doubts import doubt, far_from_data
from bespoke_solvers.endpoint import EndPoint
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import Family, NonStationary
from bespoke_solvers.gauss_newton import GaussNewton
from bespoke_solvers.grids import WARPS
from bespoke_solvers.objectives import bespoke_loss
from bespoke_solvers.projection import Projection
from bespoke_solvers.reference import Paths
from bespoke_solvers.run import Planned, Rate, Run, rated
from bespoke_solvers.solver import Solver
from bespoke_solvers.stages import Adam, ClosedForm, Loss, Stage, check_gradient
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Counter, Model

# At most, by objective.
STEPS = {"closed-form": len(WARPS) + 1, "projection": 10, "endpoint": 20, "bound": 1000}
CHAIN = ("closed-form", "projection", "endpoint")  # for `ns`, each one the start of the next
STARTS = 3  # of the high effort: the default's chain, on as many paths, from each of so many time grids, the best ones,
HIGH = (*CHAIN * STARTS, "endpoint")  # then the end point on all paths, from the best solver that was found


class Effort(NamedTuple):
    """How far the chain goes, on how many paths (see `enough`), and for how many steps at most of its last stage."""

    objective: str
    paths: int
    steps: int


EFFORTS = {
    "low": Effort("closed-form", 32, STEPS["closed-form"]),
    "medium": Effort("endpoint", 64, 12),
    "high": Effort("endpoint", 256, 40),
}
PAPER = Effort("bound", 256, STEPS["bound"])
LEARNING_RATE = 2e-3
VALIDATION_PATHS = 64
FEW, MOST = 512, 8  # numbers of a sample, below which there are more samples than usual, and how many times as many


@torch.inference_mode(False)  # some stages differentiate, whatever the mode they are called in
def fit(
    model: Model,
    *,
    nfe: int,
    family: str | Family = "ns",
    objective: str | Loss | None = None,
    effort: str | None = None,
    start: Table | None = None,
    seed: int = 0,
    paths: int | str | None = None,
    iterations: int | None = None,
    learning_rate: float | None = None,
    validation_paths: int | None = None,
    validate_every: int = 25,
    bank: Bank | None = None,
    rate: Rate | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Solver:
    """A solver for `model` with `nfe` evaluations: the step of the fit that was best on held-out noise.

    family: `ns`, `rk1`, `rk2`, or a module of `families` (another base method, time or scale alone).
    objective: for `ns`, how far the chain closed-form, projection, endpoint goes; for `rk1` and `rk2`, bound (eq. 26)
    or endpoint; or a loss of one's own for Adam, a function of the family and a batch of paths.
    effort: `low`, `medium` (default) or `high`, which names objective, paths and iterations of `ns` (see `EFFORTS`).
    start: for `ns`, a table on the model (a baseline's, say) in the place of the closed form: projection and endpoint
    go on from it, or an objective that is given, alone.
    paths: how many exact paths are solved once and kept (`enough`, by default); "fresh" solves new ones for each step,
    as the paper does.
    iterations: the most steps of the last stage, which ends earlier where they no longer pay.
    learning_rate (`LEARNING_RATE` by default), validate_every: Adam's, for the bound and losses of one's own.
    validation_paths: how many samples the best step is chosen by, and as many others to report on.
    bank: where exact paths are kept, in what batches; by default in memory, 32 at a time. For a half-precision network
    it may be that of the same model in full precision, so that the rounding is fitted, too.
    rate: what the best step is chosen by, the lower the better, in place of RMSE and PSNR on held-out noise: FID, say.
    If it has a `mark`, a text that names it, the solver keeps that, and checkpoints of fits by another are refused.
    checkpoint: a file written after each validation; where it exists, the fit goes on from it.

    Everything is a function of `seed`: a resumed fit ends where an undisturbed one does.
    """
    if not isinstance(model, Model):
        raise ValueError(f"got a {type(model).__name__} to fit to; expected a bespoke_solvers.Model made of it")
    nfe = _whole("nfe", nfe, 1, "; for several, fit one after another")
    if not isinstance(start, Table | None):
        raise ValueError(f"got a {type(start).__name__} to start from; expected a table on the model, solver.table say")
    if not isinstance(bank, Bank | None):
        raise ValueError(f"got a {type(bank).__name__} as bank; expected a Bank(model, folder)")
    if isinstance(family, str):
        learner = families.make(family, nfe, learn_scale=model.scales_noise)
    else:
        learner = copy.deepcopy(family)
    if learner.nfe != nfe:
        raise ValueError(f"the given family has {learner.nfe} evaluations, but nfe = {nfe} was asked for")
    names = stages_of(learner, objective, effort, start is not None, paths == "fresh", learning_rate)
    learning_rate = LEARNING_RATE if learning_rate is None else learning_rate
    paths, steps = amounts(model, learner, objective, effort, names, paths, iterations)
    if start is not None and isinstance(learner, NonStationary):
        held, times = learner.held_scale(model), start.t.tolist()
        if min(times) < model.t_lo or max(times) > model.t_hi:
            raise ValueError(
                f"the start has evaluations from t = {min(times):g} to {max(times):g}, outside the model's domain "
                f"({model.t_lo:g}, {model.t_hi:g}); give one that was made for this model"
            )
        learner.load_table(start.off(model))
        if held is not None and not math.isclose(float(start.a[0]), held, rel_tol=1e-6):
            raise ValueError(
                f"the start multiplies the noise by {float(start.a[0]):.6g}, but the model's samplers by {held:.6g}; "
                "give another start, or a model with scales_noise=True"
            )
    validation_paths = enough(model, VALIDATION_PATHS) if validation_paths is None else validation_paths
    validation_paths = _whole("validation_paths", validation_paths, 1)
    validate_every = _whole("validate_every", validate_every, 1)
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"the learning rate must be positive and finite, got {learning_rate:g}")
    description = describe(model)
    if callable(objective) or names[-1] == "bound":
        check_gradient(model)
    if found := doubt(model):
        warnings.warn(found, stacklevel=2)
    bank = bank or Bank(model)
    bank.check(model, description)
    choose, report = (held_out(bank, name, seed, validation_paths, progress) for name in ("choose", "report"))
    if found := far_from_data(report.x1):
        warnings.warn(found, stacklevel=2)
    batches = bank.fill(seed, paths, progress) if isinstance(paths, int) else None
    settings = {
        "family": learner.name,
        "learn": learner.learn,
        "objective": names[-1],
        "stages": names,
        "start": None if start is None else [start.t.tolist(), start.a.tolist(), start.b.tolist()],
        "began": digest(learner.state_dict().values()) if isinstance(family, Family) else None,
        "nfe": nfe,
        "seed": seed,
        "paths": paths if batches is None else batches * bank.batch_size,
        "batch_size": bank.batch_size,
        "batches": batches,
        "tolerance": [bank.rtol, bank.atol],
        "learning_rate": learning_rate,
        "validation_paths": validation_paths,
        "validate_every": validate_every,
        "rated": rated(rate),
    }

    counter = Counter(model.velocity)
    source = Batches(bank, dataclasses.replace(model, velocity=counter), seed, batches)

    def stage(name: str, on: Sequence[Paths], rank: int) -> Stage:
        match name, learner:
            case _ if callable(objective):
                return Adam(learner, source.turn, objective, learning_rate, validate_every)
            case "closed-form", NonStationary():
                return ClosedForm(learner, on, rank)
            case "projection", NonStationary():
                return GaussNewton(Projection(learner, on))
            case "endpoint", _:
                return GaussNewton(EndPoint(learner, on))
        return Adam(learner, source.turn, bespoke_loss, learning_rate, validate_every)

    run = Run(learner, model, choose, settings, description, checkpoint, rate)
    if not run.history:
        solved = len(choose.noise) * bank.batch_size  # whole batches
        run.evaluations["reference"] = source.evaluations + round(choose.evaluations * solved)
    first = -(-enough(model, EFFORTS["medium"].paths) // bank.batch_size)
    plan = []
    for i, (name, most) in enumerate(zip(names, steps, strict=True)):
        last, rank = i == len(names) - 1, i // len(CHAIN)
        on = source[:first] if tuple(names) == HIGH and not last else source
        plan.append(Planned(name, functools.partial(stage, name, on, rank), most, goes_on=rank > 0 and not last))
    run.go_on(plan, lambda: source.evaluations, counter, progress)
    solving = bank.seconds("choose", seed, len(choose.noise)) + bank.seconds("fit", seed, batches or 0)
    course = {  # exact paths count, in evaluations and in time, also where an earlier fit left them in the bank
        "evaluations": run.evaluations,
        "seconds": round(run.seconds + solving, 1),
        "iterations": run.iteration,
        "best_iteration": run.best_iteration,
        "ratings": _finite(run.ratings),
        "history": _finite(run.history),
    }
    return _solver(learner, model, description, report, settings | course)


def _finite(rows: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[x if x is not None and math.isfinite(x) else None for x in row] for row in rows]


def enough(model: Model, count: int) -> int:
    """How many samples to fit to or judge by: more where a sample has few numbers (see `FEW`)."""
    usual = max(count, EFFORTS["medium"].paths)
    return max(count, math.ceil(usual * min(FEW / math.prod(model.shape), MOST)))


def paths_of(model: Model, family: Family, effort: str | None) -> int:
    """How many exact paths a fit solves where nothing else is said; the paper's families have few numbers to fit."""
    return enough(model, EFFORTS[effort or "medium"].paths) if isinstance(family, NonStationary) else PAPER.paths


def stages_of(
    family: Family,
    objective: str | Loss | None,
    effort: str | None = None,
    started: bool = False,
    fresh: bool = False,
    learning_rate: float | None = None,
) -> list[str]:
    """The stages that a fit goes through; refuses what does not go together."""
    chained = isinstance(family, NonStationary)
    if effort is not None and not chained:
        raise ValueError(f"effort {effort!r} for {family.name}; efforts are for ns, give objective and iterations here")
    if effort not in (None, *EFFORTS):
        raise ValueError(f"effort {effort!r} for {family.name}; expected one of {', '.join(EFFORTS)}")
    name = _default(family, effort).objective if objective is None else objective
    if callable(name):
        if started and not chained:
            raise ValueError(f"{family.name} has a start of its own; start is for ns")
        return [getattr(name, "__name__", "own")]
    possible = CHAIN if chained else ("bound", "endpoint")
    if name not in possible:
        raise ValueError(f"unknown objective {name!r} for {family.name}; expected one of {', '.join(possible)}")
    if started and (not chained or name == "closed-form"):
        raise ValueError(f"{name} of {family.name} has a start of its own; start is for projection and endpoint of ns")
    if fresh and name != "bound":
        raise ValueError(f"new paths in every iteration are for the bound; {name} needs paths that are kept")
    if learning_rate is not None and name != "bound":
        raise ValueError(f"learning_rate = {learning_rate:g} is for Adam and the bound; {name} has none, leave it out")
    if started:  # in the place of the closed form; an objective that was asked for begins there
        return [name] if objective else list(CHAIN[1 : CHAIN.index(name) + 1])
    if not chained:
        return [name]
    return list(HIGH if (effort, name) == ("high", CHAIN[-1]) else CHAIN[: CHAIN.index(name) + 1])


def _default(family: Family, effort: str | None) -> Effort:
    return EFFORTS[effort or "medium"] if isinstance(family, NonStationary) else PAPER


def amounts(
    model: Model,
    family: Family,
    objective: str | Loss | None,
    effort: str | None,
    names: list[str],
    paths: int | str | None,
    iterations: int | None,
) -> tuple[int | str, list[int]]:
    """How many paths, and the most steps of each stage."""
    default = _default(family, effort)
    paths = paths_of(model, family, effort) if paths is None else paths
    if paths != "fresh":
        paths = _whole("paths", paths, 1, '; or "fresh"')
    if iterations is not None:
        iterations = _whole("iterations", iterations, 0)
    if iterations is None:
        iterations = default.steps if objective in (None, default.objective) else STEPS.get(names[-1], STEPS["bound"])
    elif names[-1] == "closed-form":
        raise ValueError(f"closed-form cannot have {iterations} iterations: it has none to set; leave them out")
    before = [EFFORTS["medium"].steps if name == "endpoint" else STEPS[name] for name in names[:-1]]
    return paths, [*before, iterations]


def _whole(name: str, value: Any, least: int, more: str = "") -> int:
    """A whole number of one's own or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}{more}")
    return int(value)


def _solver(
    learner: Family, model: Model, description: dict[str, Any], report: HeldOut, provenance: dict[str, Any]
) -> Solver:
    """The solver, with its quality on the reporting set beside that of its base method."""
    table = learner().detach().on(model)
    quality, base = report.quality(table, model), report.quality(learner.base_table().on(model), model)
    if found := report.doubt(quality.rmse):
        warnings.warn(found, stacklevel=3)
    return Solver(
        table=table,
        family=learner.name,
        theta={name: value.tolist() for name, value in learner.state_dict().items()},
        model=description,
        fit=provenance | {"dtype": str(model.dtype), "torch": str(torch.__version__), "bespoke_solvers": __version__},
        validation={
            "samples": len(report.x1),
            **quality.figures(),
            "baseline": learner.base,
            **{f"baseline_{name}": value for name, value in base.figures().items()},
            "reference_evaluations": report.evaluations,
            "reference_error": report.own_error,
        },
        network_time=network_time(model, table),
    )
