"""Bespoke training (paper, Algorithm 2): one loop over a source of exact paths."""

import copy
import dataclasses
import io
import os
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import __version__, families
from bespoke_solvers.bank import Bank
from bespoke_solvers.description import describe, differences, in_words, network_time
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import Bespoke
from bespoke_solvers.files import write_atomically
from bespoke_solvers.objectives import bespoke_loss
from bespoke_solvers.reference import Paths, solve
from bespoke_solvers.solver import Solver
from bespoke_solvers.velocity import Counter, Model

Objective = Callable[[Bespoke, Paths], Tensor]

OBJECTIVES: dict[str, Objective] = {"bound": bespoke_loss}


class PathSource(NamedTuple):
    """Where an iteration's batch of exact paths comes from, and how many batches there are (None: always new ones)."""

    batch: Callable[[int], Paths]
    batches: int | None


def fresh_paths(bank: Bank, seed: int) -> PathSource:
    """New noise and a new solve for every iteration, nothing kept: as the paper prints it."""

    def batch(iteration: int) -> Paths:
        return solve(bank.model, bank.noise("fit", seed, iteration), rtol=bank.rtol, atol=bank.atol)

    return PathSource(batch, None)


def kept_paths(bank: Bank, seed: int, count: int, progress: bool = False) -> PathSource:
    """`count` paths of the bank; iterations go through their batches in turn."""
    batches = bank.fill(seed, count, progress)
    return PathSource(lambda iteration: bank.paths(seed, iteration % batches), batches)


def fit(
    model: Model,
    *,
    nfe: int,
    family: str | Bespoke = "rk2",
    objective: str | Objective = "bound",
    seed: int = 0,
    paths: int | None = 256,
    iterations: int = 1000,
    learning_rate: float = 2e-3,
    validation_paths: int = 256,
    validate_every: int = 25,
    bank: Bank | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Solver:
    """A solver for `model` with `nfe` evaluations: the iteration that was best on held-out noise.

    family: `rk1`, `rk2`, or a `families.Bespoke` of one's own choice (another base method, time or scale alone).
    objective: `bound` (eq. 26), or a function of the family and a batch of paths that gives each path's loss.
    paths: how many exact paths are solved once and kept; None solves new ones in every iteration, as the paper does.
    bank: where they are kept, in what batches; by default in memory, 32 at a time.
    checkpoint: a file written after each validation; where it exists, the fit goes on from it.
    Everything is a function of `seed`: a resumed fit ends where an undisturbed one does.
    """
    started = time.monotonic()
    learner = families.make(family, nfe) if isinstance(family, str) else copy.deepcopy(family)
    if learner.nfe != nfe:
        raise ValueError(f"the given family has {learner.nfe} evaluations, but nfe = {nfe} was asked for")
    if isinstance(objective, str) and objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; expected one of {', '.join(OBJECTIVES)}")
    if iterations < 0 or validation_paths < 1 or (paths is not None and paths < 1):
        raise ValueError(f"{iterations} iterations, {paths} paths or {validation_paths} to validate are too few")
    loss_of = OBJECTIVES[objective] if isinstance(objective, str) else objective
    description = describe(model)
    bank = bank or Bank(model)
    if bank.model is not model:
        raise ValueError("the bank was made for another model; make it with Bank(model, ...) of the model to fit")
    choose, report = (held_out(bank, name, seed, validation_paths, progress) for name in ("choose", "report"))
    source = fresh_paths(bank, seed) if paths is None else kept_paths(bank, seed, paths, progress)
    settings = {
        "family": learner.name,
        "learn": learner.learn,
        "objective": objective if isinstance(objective, str) else getattr(objective, "__name__", "own"),
        "nfe": nfe,
        "seed": seed,
        "paths": paths,
        "batch_size": bank.batch_size,
        "batches": source.batches,
        "tolerance": [bank.rtol, bank.atol],
        "learning_rate": learning_rate,
        "validation_paths": validation_paths,
        "validate_every": validate_every,
    }

    run = _Run(learner, model, description, choose, settings, None if checkpoint is None else Path(checkpoint))
    run.resume()
    run.go_on(loss_of, source, iterations, progress)

    learner.load_state_dict(run.best)
    history = {"iterations": run.iteration, "best_iteration": run.best_iteration}
    cost = {"evaluations": run.evaluations, "seconds": round(time.monotonic() - started, 1)}
    return _solver(
        learner, model, description, report, settings | cost | history | {"history": [list(row) for row in run.history]}
    )


class _Run:
    """What changes during a fit, and its checkpoint."""

    KEPT = ("settings", "description", "iteration", "best_iteration", "best", "history", "evaluations")

    def __init__(
        self,
        learner: Bespoke,
        model: Model,
        description: dict[str, Any],
        choose: HeldOut,
        settings: dict[str, Any],
        checkpoint: Path | None,
    ) -> None:
        self.learner, self.choose, self.settings, self.checkpoint = learner, choose, settings, checkpoint
        self.counter = Counter(model.velocity)
        self.model = dataclasses.replace(model, velocity=self.counter)
        self.description = description
        self.learned = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(self.learned, lr=settings["learning_rate"])
        self.iteration = 0
        self.best_iteration = 0
        self.best: dict[str, Tensor] = {}
        self.history: list[tuple[int, float | None, float]] = []
        # The cost in evaluations of u: exact paths (a kept one once), tables and losses, gradients of losses.
        self.evaluations = {"reference": 0, "forward": 0, "backward": 0}

    def go_on(self, loss_of: Objective, source: PathSource, iterations: int, progress: bool) -> None:
        """Train up to `iterations`, with a validation at the start, at the end and every now and then."""
        name, nfe, every = self.settings["family"], self.settings["nfe"], self.settings["validate_every"]
        with tqdm(total=iterations, initial=self.iteration, desc=f"{name}, {nfe} NFE", disable=not progress) as bar:
            if not self.history:
                self.evaluations["reference"] += round(self.choose.evaluations * len(self.choose.x1))
                self.validate(None)
            bar.set_postfix(self.postfix())
            while self.iteration < iterations:
                paths = source.batch(self.iteration)
                if source.batches is None or self.iteration < source.batches:
                    self.evaluations["reference"] += paths.evaluations * len(paths.x1)
                loss = self.step(loss_of, paths)
                bar.update()
                if self.iteration % every == 0 or self.iteration == iterations:
                    self.validate(loss)
                    bar.set_postfix(self.postfix())

    def step(self, loss_of: Objective, paths: Paths) -> float:
        """One step of Adam."""
        before = self.counter.evaluations
        loss = loss_of(self.learner, dataclasses.replace(paths, model=self.model)).mean()
        if not torch.isfinite(loss):
            raise ValueError(
                f"the loss is {loss.item()} at iteration {self.iteration}; the velocity must be finite everywhere"
            )
        self.optimizer.zero_grad()
        loss.backward(inputs=self.learned)  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.evaluations["forward"] += self.counter.evaluations - before
        self.evaluations["backward"] += self.counter.evaluations - before
        self.iteration += 1
        return loss.item()

    def validate(self, loss: float | None) -> None:
        """Measure the table on the choosing set, keep the best, and write the checkpoint."""
        rmse = self.choose.quality(self.learner().detach().on(self.model), self.model).rmse
        self.evaluations["forward"] += self.learner.nfe * len(self.choose.x1)
        if not self.history or rmse < min(row[2] for row in self.history):
            self.best = {name: value.clone() for name, value in self.learner.state_dict().items()}
            self.best_iteration = self.iteration
        self.history.append((self.iteration, loss, rmse))
        if self.checkpoint is not None:
            buffer = io.BytesIO()
            torch.save({name: getattr(self, name) for name in self.KEPT} | self._states(), buffer)
            write_atomically(self.checkpoint, buffer.getvalue())

    def _states(self) -> dict[str, Any]:
        return {"learner": self.learner.state_dict(), "optimizer": self.optimizer.state_dict()}

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; refuse one of another fit."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            kept = torch.load(self.checkpoint, weights_only=True)
            was = kept["settings"]
            other = {name: (was.get(name), value) for name, value in self.settings.items() if was.get(name) != value}
            other |= differences(kept["description"], self.description, tolerance=1e-3)
            states = [kept["learner"], kept["optimizer"], *(kept[name] for name in self.KEPT)]
        except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{self.checkpoint} is no checkpoint of a fit; remove it or name another file") from error
        if other:
            listed = "; ".join(in_words(name, *pair) for name, pair in other.items())
            raise ValueError(f"{self.checkpoint} is of another fit: {listed}; give the same settings or remove it")
        self.learner.load_state_dict(states[0])
        self.optimizer.load_state_dict(states[1])
        for name, value in zip(self.KEPT, states[2:], strict=True):
            setattr(self, name, value)

    def postfix(self) -> dict[str, str]:
        """Validation RMSE: now, at its best, and of the base method."""
        errors = [row[2] for row in self.history]
        base = self.learner.tableau.name
        return {"rmse": f"{errors[-1]:.4f}", "best": f"{min(errors):.4f}", base: f"{errors[0]:.4f}"}


def _solver(
    learner: Bespoke, model: Model, description: dict[str, Any], report: HeldOut, provenance: dict[str, Any]
) -> Solver:
    """The solver, with its quality on the reporting set beside that of its base method."""
    table = learner().detach().on(model)
    base = Bespoke(learner.n, learner.tableau)().detach().on(model)
    quality, baseline = report.quality(table, model), report.quality(base, model)
    if report.own_error > quality.rmse / 5:
        warnings.warn(
            f"the reference's own RMSE, {report.own_error:.1e}, is over a fifth of the solver's, {quality.rmse:.1e}, "
            "and limits the fit and its figures; run the network in full float32 or give a bank of smaller tolerances",
            stacklevel=3,
        )
    return Solver(
        table=table,
        family=learner.name,
        theta={name: value.tolist() for name, value in learner.state_dict().items()},
        model=description,
        fit=provenance | {"dtype": str(model.dtype), "torch": str(torch.__version__), "bespoke_solvers": __version__},
        validation={
            "samples": len(report.x1),
            "rmse": quality.rmse,
            "psnr": quality.psnr,
            "baseline": learner.tableau.name,
            "baseline_rmse": baseline.rmse,
            "baseline_psnr": baseline.psnr,
            "reference_evaluations": report.evaluations,
            "reference_error": report.own_error,
        },
        network_time=network_time(model, table),
    )
