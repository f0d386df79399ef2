"""Bespoke training (paper, Algorithm 2): one loop over a source of exact paths."""

import dataclasses
import io
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import families
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import Bespoke
from bespoke_solvers.objectives import bespoke_loss
from bespoke_solvers.reference import Paths, solve
from bespoke_solvers.solver import Solver, describe, write_atomically
from bespoke_solvers.velocity import Counter, Model, noise_seeds

Objective = Callable[[Bespoke, Paths], Tensor]
PathSource = Callable[[int], Paths]

OBJECTIVES: dict[str, Objective] = {"bound": bespoke_loss}


def fresh_paths(model: Model, seed: int, batch_size: int) -> PathSource:
    """New noise and a new solve for every iteration, as the paper prints it."""
    return lambda iteration: solve(model, model.noise(noise_seeds("fit", seed, iteration * batch_size, batch_size)))


def kept_paths(model: Model, seed: int, batch_size: int, count: int) -> PathSource:
    """`count` paths, solved once; iterations go through their batches in turn."""
    starts = range(0, count, batch_size)
    batches = [solve(model, model.noise(noise_seeds("fit", seed, i, min(batch_size, count - i)))) for i in starts]
    return lambda iteration: batches[iteration % len(batches)]


def fit(
    model: Model,
    *,
    nfe: int,
    family: str | Bespoke = "rk2",
    objective: str | Objective = "bound",
    seed: int = 0,
    paths: int | None = 256,
    iterations: int = 1000,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
    validation_paths: int = 256,
    validate_every: int = 25,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Solver:
    """A solver for `model` with `nfe` evaluations: the iteration that was best on held-out noise.

    family: `rk1`, `rk2`, or a `families.Bespoke` of one's own choice (another base method, time or scale alone).
    objective: `bound` (eq. 26), or a function of the family and a batch of paths that gives each path's loss.
    paths: how many exact paths are solved once and kept; None solves new ones in every iteration, as the paper does.
    checkpoint: a file written after each validation; where it exists, the fit goes on from it.
    Everything is a function of `seed`: a resumed fit ends where an undisturbed one does.
    """
    learner = families.make(family, nfe) if isinstance(family, str) else family
    if learner.nfe != nfe:
        raise ValueError(f"the given family has {learner.nfe} evaluations, but nfe = {nfe} was asked for")
    if isinstance(objective, str) and objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; expected one of {', '.join(OBJECTIVES)}")
    loss_of = OBJECTIVES[objective] if isinstance(objective, str) else objective
    counter = Counter(model.velocity)
    counted = dataclasses.replace(model, velocity=counter)
    started = time.monotonic()

    choose = held_out(counted, "choose", seed, validation_paths, batch_size)
    source = fresh_paths(counted, seed, batch_size) if paths is None else kept_paths(counted, seed, batch_size, paths)
    settings = {
        "family": learner.name,
        "learn": learner.learn,
        "objective": objective if isinstance(objective, str) else getattr(objective, "__name__", "own"),
        "nfe": nfe,
        "seed": seed,
        "paths": paths,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "validation_paths": validation_paths,
        "validate_every": validate_every,
    }
    run = _Run(learner, choose, settings, learning_rate, None if checkpoint is None else Path(checkpoint))
    run.resume()
    with tqdm(
        total=iterations, initial=run.iteration, desc=f"fit {learner.name}, {nfe} NFE", disable=not progress
    ) as bar:
        if not run.history:
            run.validate(float("nan"))
        bar.set_postfix(run.postfix())
        while run.iteration < iterations:
            loss = run.step(loss_of(learner, source(run.iteration)).mean())
            bar.update()
            if run.iteration % validate_every == 0 or run.iteration == iterations:
                run.validate(loss)
                bar.set_postfix(run.postfix())

    learner.load_state_dict(run.best)
    seconds = time.monotonic() - started
    provenance = settings | {
        "iterations": run.iteration,
        "best_iteration": run.best_iteration,
        "evaluations": counter.evaluations,
        "seconds": round(seconds, 1),
        "dtype": str(model.dtype),
        "torch": str(torch.__version__),
        "history": [list(row) for row in run.history],
    }
    return _finish(learner, model, seed, validation_paths, batch_size, provenance)


class _Run:
    """What changes during a fit, and its checkpoint."""

    def __init__(
        self,
        learner: Bespoke,
        choose: HeldOut,
        settings: dict[str, Any],
        learning_rate: float,
        checkpoint: Path | None,
    ) -> None:
        self.learner, self.choose, self.settings, self.checkpoint = learner, choose, settings, checkpoint
        self.optimizer = torch.optim.Adam([p for p in learner.parameters() if p.requires_grad], lr=learning_rate)
        self.iteration = 0
        self.history: list[tuple[int, float | None, float]] = []
        self.best: dict[str, Tensor] = {}
        self.best_iteration = 0

    def step(self, loss: Tensor) -> float:
        """One step of Adam."""
        value = loss.item()
        if not torch.isfinite(loss):
            raise ValueError(
                f"the loss is {value} at iteration {self.iteration}: check that the velocity is finite where it is used"
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.iteration += 1
        return value

    def validate(self, loss: float) -> None:
        """Measure the table on the choosing set, keep the best, and write the checkpoint."""
        rmse = self.choose.quality(self.learner()).rmse
        if not self.history or rmse < min(row[2] for row in self.history):
            self.best = {name: value.clone() for name, value in self.learner.state_dict().items()}
            self.best_iteration = self.iteration
        self.history.append((self.iteration, None if loss != loss else loss, rmse))
        if self.checkpoint is not None:
            buffer = io.BytesIO()
            torch.save(self._state(), buffer)
            write_atomically(self.checkpoint, buffer.getvalue())

    def _state(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "iteration": self.iteration,
            "history": self.history,
            "best": self.best,
            "best_iteration": self.best_iteration,
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; refuse one of another fit."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        for name, value in self.settings.items():
            if state["settings"].get(name) != value:
                raise ValueError(
                    f"{self.checkpoint} belongs to a fit with {name} = {state['settings'].get(name)}, this one has "
                    f"{name} = {value}; give the same settings or remove the file"
                )
        self.iteration, self.history, self.best = state["iteration"], state["history"], state["best"]
        self.best_iteration = state["best_iteration"]
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])

    def postfix(self) -> dict[str, str]:
        """Validation RMSE: now, at its best, and of the base method."""
        errors = [row[2] for row in self.history]
        return {
            "rmse": f"{errors[-1]:.4f}",
            "best": f"{min(errors):.4f}",
            self.learner.tableau.name: f"{errors[0]:.4f}",
        }


def _finish(
    learner: Bespoke, model: Model, seed: int, count: int, batch_size: int, provenance: dict[str, Any]
) -> Solver:
    """The solver, with its quality on the reporting set."""
    table = learner().detach()
    base = families.Bespoke(learner.n, learner.tableau)().detach()
    report = held_out(model, "report", seed, count, batch_size)
    quality, baseline = report.quality(table), report.quality(base)
    if report.own_error > quality.rmse / 5:
        warnings.warn(
            f"the reference's own RMSE, {report.own_error:.1e}, is over a fifth of the solver's, {quality.rmse:.1e}, "
            "and limits the fit and its figures; run the network in full float32",
            stacklevel=3,
        )
    on_model = table.on(model)
    return Solver(
        table=on_model,
        family=learner.name,
        theta={name: value.tolist() for name, value in learner.state_dict().items()},
        model=describe(model),
        fit=provenance,
        validation={
            "samples": count,
            "rmse": quality.rmse,
            "psnr": quality.psnr,
            "baseline": learner.tableau.name,
            "baseline_rmse": baseline.rmse,
            "baseline_psnr": baseline.psnr,
            "reference_evaluations": report.evaluations,
            "reference_error": report.own_error,
        },
        network_time=None if model.network_time is None else model.network_time(on_model.t).tolist(),
    )
