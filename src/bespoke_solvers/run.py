"""The course of a fit: its stages one after another, validated, the best kept, and resumed from a checkpoint."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from tqdm.auto import tqdm

from bespoke_solvers import checkpoints
from bespoke_solvers.description import differences
from bespoke_solvers.evaluation import HeldOut, Quality
from bespoke_solvers.families import Family
from bespoke_solvers.stages import Stage
from bespoke_solvers.table import Table
from bespoke_solvers.velocity import Counter, Model

Rate = Callable[[Table, Model], float]  # of a table on the model; the lower the better


def rated(rate: Rate | None) -> str | bool:
    """What a rate goes by, as its `mark` or that of the object whose method it is says; else whether there is one."""
    mark = getattr(getattr(rate, "__self__", rate), "mark", None)
    return mark if isinstance(mark, str) else rate is not None


class Planned(NamedTuple):
    """A stage to come: its name, how to make it, the most steps it may take; and whether it goes on where the one
    before it ended, not at the best step so far."""

    name: str
    make: Callable[[], Stage]
    steps: int
    goes_on: bool = False


class Run:
    """What changes during a fit of `family`, which is left at the step that was best on the choosing set, or by `rate`.

    `settings` and `description` (of the model) say which fit it is, so that no other one goes on from its checkpoint.
    """

    KEPT = (
        *("settings", "description", "stage", "done", "state", "iteration", "history", "evaluations", "seconds"),
        *("best", "best_iteration", "best_quality", "ratings"),
    )

    def __init__(
        self,
        family: Family,
        model: Model,
        choose: HeldOut,
        settings: dict[str, Any],
        description: dict[str, Any],
        checkpoint: str | os.PathLike[str] | None,
        rate: Rate | None = None,
    ) -> None:
        self.family, self.model, self.choose, self.rate = family, model, choose, rate
        self.settings, self.description = settings, description
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.stage, self.done, self.state = 0, 0, dict[str, Any]()
        self.iteration, self.best_iteration = 0, 0
        self.best: dict[str, Tensor] = {}
        self.best_quality = (math.inf, -math.inf)  # RMSE, PSNR
        self.history: list[tuple[int, float | None, float, float]] = []
        self.ratings: list[tuple[int, float]] = []
        # The cost in evaluations of u: exact paths (a kept one once), samples and losses, gradients.
        self.evaluations = {"reference": 0, "forward": 0, "backward": 0}
        self.seconds = 0.0
        self._resume()

    def go_on(self, plan: Sequence[Planned], reference: Callable[[], int], counter: Counter, progress: bool) -> None:
        """Take the stages up to their last step. `reference` says how many evaluations exact paths took so far."""
        if not self.history:
            self._validate(None, None)
        for index in range(self.stage, len(plan)):
            if index > self.stage:
                self.stage, self.done, self.state = index, 0, {}
                if not plan[index].goes_on:
                    self.family.load_state_dict(self.best)
            name, make, steps, _ = plan[index]
            stage = make()
            if self.state:
                stage.resume(self.state)
            label = f"{self.settings['family']}, {self.settings['nfe']} NFE, {name}"
            with tqdm(total=steps, initial=self.done, desc=label, disable=not progress) as bar:
                bar.set_postfix(self._postfix())
                while self.done < steps and not stage.finished:
                    started, evaluations, solved = time.monotonic(), counter.evaluations, reference()
                    loss = stage.step()
                    self.done += 1
                    self.iteration += 1
                    spent = counter.evaluations - evaluations
                    self.evaluations["forward"] += spent
                    self.evaluations["backward"] += spent * stage.differentiates
                    self.evaluations["reference"] += reference() - solved
                    self.seconds += time.monotonic() - started
                    bar.update()
                    if self.done % stage.every == 0 or self.done == steps or stage.finished:
                        self._validate(stage, loss)
                        bar.set_postfix(self._postfix())
                bar.total = self.done  # it may have ended before
                bar.refresh()
        self.family.load_state_dict(self.best)

    def _validate(self, stage: Stage | None, loss: float | None) -> None:
        """Measure the solver on the choosing set, keep it if it is better, and write the checkpoint."""
        started, table = time.monotonic(), self.family().detach().on(self.model)
        quality = self.choose.quality(table, self.model)
        self.evaluations["forward"] += self.family.nfe * len(self.choose.x1)
        better = stage is None or stage.better(quality, Quality(*self.best_quality))
        if self.rate is not None:
            counter = Counter(self.model.velocity)
            rating = self.rate(table, dataclasses.replace(self.model, velocity=counter))
            self.evaluations["forward"] += counter.evaluations
            rating = math.inf if math.isnan(rating) else rating
            better = all(rating < other for _, other in self.ratings)
            self.ratings.append((self.iteration, rating))
        if better:
            self.best = {name: value.clone() for name, value in self.family.state_dict().items()}
            self.best_iteration, self.best_quality = self.iteration, (quality.rmse, quality.psnr)
        self.seconds += time.monotonic() - started
        self.history.append((self.iteration, loss, *quality))
        if self.checkpoint is not None:
            self.state = stage.state() if stage else {}
            kept = {name: getattr(self, name) for name in self.KEPT} | {"family": self.family.state_dict()}
            checkpoints.write(self.checkpoint, kept)

    def _resume(self) -> None:
        """Take over the checkpoint, if there is one; refuse one of another fit."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        state = checkpoints.read(
            self.checkpoint,
            (*self.KEPT, "family"),
            self.settings,
            of="fit",
            instead="name another file",
            differences=lambda kept: differences(kept["description"], self.description, tolerance=1e-3),
        )
        self.family.load_state_dict(state.pop("family"))
        for name, value in state.items():
            setattr(self, name, value)

    def _postfix(self) -> dict[str, str]:
        """Validation RMSE: now, of the step that is kept so far, and at the start."""
        rmse = [row[2] for row in self.history]
        best = self.best_quality[0]
        return {"rmse": f"{rmse[-1]:.4f}", "kept": f"{best:.4f}", "start": f"{rmse[0]:.4f}"}
