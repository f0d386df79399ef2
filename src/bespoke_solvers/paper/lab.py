"""The work: the cells of one model, computed where the store does not have them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from bespoke_solvers import dedicated, families, fitting, gallery, portfolio, tracks
from bespoke_solvers.bank import GIB, Bank
from bespoke_solvers.cells import Record, Store, numbers_of, table_of
from bespoke_solvers.description import describe, differences, in_words
from bespoke_solvers.evaluation import HeldOut, held_out
from bespoke_solvers.families import BASES
from bespoke_solvers.generic import TABLEAUS
from bespoke_solvers.judge import Judge
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.plan import BASELINES, FITS, RK2_BESPOKE, Counts, Experiment
from bespoke_solvers.reference import solve
from bespoke_solvers.table import Table, states
from bespoke_solvers.transfer import transferred
from bespoke_solvers.velocity import Model

EXACT = "exact"
SHOWN_AT = (8, 10, 20)  # the NFE of the paper's figures of samples
SPRITES = len(SHOWN_AT) * len(plan.SAMPLES.methods) + 1  # of a model, the exact samples among them
PICTURES = 4  # in each: of CIFAR10 about 130 kB for all of them, as WebP in base64
PATHS_SHOWN = 3
FAILURES = (ValueError, OSError, RuntimeError)  # after which a run goes on with its other cells


@dataclass
class Lab:
    """One model by its name in the cells, and what is needed to measure it.

    folder: for exact paths, of at most `budget` GiB, and for checkpoints of fits. failed: why cells could not be
    measured, by method and NFE.
    """

    name: str
    model: Model
    store: Store
    counts: Counts
    seed: int
    folder: Path
    judge: Judge | None = None
    budget: float = 16.0
    progress: bool = False
    others: Mapping[str, "Lab"] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    on_grids: dict[tuple[str, int], portfolio.Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse another model than that of the cells."""
        described = _described(self.model)
        for kept in self.store.of(self.name):
            if kept["measured"] == "model" and (other := differences(_as_described(kept), described, 1e-3)):
                listed = "; ".join(in_words(name, *pair) for name, pair in other.items())
                where = f"{self.name} in {self.store.folder}"
                raise ValueError(f"the cells of {where} are of another model: {listed}; give another --out")

    @cached_property
    def bank(self) -> Bank:
        """Its exact paths."""
        tolerance, size = self.counts.tolerance, self.counts.batch_size
        folder = self.folder / plan.file_name(f"{self.name} {tolerance:g} {size}")
        return Bank(self.model, folder, size, int(self.budget * GIB), rtol=tolerance, atol=tolerance)

    @cached_property
    def report(self) -> HeldOut:
        """The samples that all figures are of."""
        return held_out(self.bank, "report", self.seed, self.counts.samples, self.progress)

    def cell(self, measured: str, method: str, nfe: int, compute: Callable[[], Record | None]) -> Record | None:
        """A cell of this model."""
        return self.store.cell(plan.key(self.name, measured, method, nfe, self.seed, self.counts), compute)

    def measure(self, experiment: Experiment) -> None:
        """All cells that an experiment needs, as far as it is for this model."""
        if experiment.paths and self.about()["model_is"]["schedule"]["name"] not in experiment.paths:
            return
        methods = list(experiment.methods)
        if experiment is plan.TRANSFER:
            methods += [plan.transferred(name) for name in self.others if name != self.name]
        judge = self.judge if experiment.fid else None
        for nfe, method in self._jobs(methods):
            with self.going_on(method, nfe):
                self.error(method, nfe)
                if judge:
                    self.fid(method, nfe, judge)
        if judge:
            with self.going_on(EXACT, 0):
                self.cell("fid", EXACT, 0, lambda: judge.exact(self.bank))
        if experiment is plan.SAMPLES:
            self.sprites(methods)
        if experiment is plan.PATHS:
            self.paths(methods)

    @contextmanager
    def going_on(self, method: str, nfe: int) -> Iterator[None]:
        """What fails in here is told and kept, and the run goes on."""
        try:
            yield
        except FAILURES as error:
            if (method, nfe) not in self.failed:
                self.failed[method, nfe] = " ".join(str(error).split())
                self.store.say(f"{self.name}, {nfe} NFE, {method}: failed, {self.failed[method, nfe]}")

    def _jobs(self, methods: Sequence[str]) -> list[tuple[int, str]]:
        """By NFE, so that an interrupted run has whole columns."""
        return sorted((n, m) for m in methods for n in plan.evaluations(m, self.counts.nfe))

    def about(self) -> Record:
        """What the model is, and its exact samples: their cost and their own error."""

        def compute() -> Record:
            described = _described(self.model)
            fingerprint = described.pop("fingerprint")
            return {
                "model_is": described,
                "fingerprint": fingerprint,
                "can_be_shown": gallery.can_show(self.model),
                "reference_evaluations": self.report.evaluations,
                "reference_error": self.report.own_error,
            }

        found = self.cell("model", EXACT, 0, compute)
        assert found is not None
        return found

    def error(self, method: str, nfe: int) -> Record:
        """RMSE and PSNR of a method, and its grid where that was chosen."""

        def compute() -> Record:
            if method in plan.ON_BEST_GRID:
                best = self.on_best_grid(method, nfe)
                return self.figures(best.table) | {"grid": best.name}
            return self.figures(self.table(method, nfe))

        found = self.cell("error", method, nfe, compute)
        assert found is not None
        return found

    def on_best_grid(self, method: str, nfe: int) -> portfolio.Candidate:
        """A dedicated method on the time grid that is best on a part of the choosing set."""
        if (method, nfe) not in self.on_grids:
            choose = held_out(self.bank, "choose", self.seed, min(self.counts.choose, plan.GRID_SAMPLES), self.progress)
            found = portfolio.best([BASELINES[method]], nfe, self.model, choose)
            assert found is not None, f"{method} cannot have {nfe} evaluations"
            self.on_grids[method, nfe] = found
        return self.on_grids[method, nfe]

    def figures(self, table: Table) -> Record:
        """RMSE and PSNR of a table on the reporting set, and the standard error of the first."""
        return self.report.figures(self.report.sample(table, self.model))

    def fid(self, method: str, nfe: int, judge: Judge) -> None:
        """FID and KID of a method whose samples are finite."""
        if self.error(method, nfe)["rmse"] is not None:
            self.cell("fid", method, nfe, lambda: judge.table(self.table(method, nfe), self.model))

    def table(self, method: str, nfe: int) -> Table:
        """The table of a method on this model."""
        source = plan.source_of(method)
        if source is not None:
            other = self.others[source]
            with other.going_on(RK2_BESPOKE, nfe):  # where the fit fails, that is the other's failure, too
                other.table(RK2_BESPOKE, nfe)
            return transferred(other.table(RK2_BESPOKE, nfe), other.model, self.model)
        if method in FITS:
            fitted = self.cell("fit", method, nfe, lambda: self.fit(method, nfe))
            assert fitted is not None
            return table_of(fitted)
        if method in plan.ON_BEST_GRID:
            return dedicated.baseline(self.error(method, nfe)["grid"], nfe, self.model)
        return dedicated.baseline(BASELINES[method], nfe, self.model)

    def fit(self, method: str, nfe: int) -> Record:
        """A fit as the record of its cell: what it gave, what it cost, and its course."""
        if (method, nfe) in self.failed:
            raise RuntimeError(self.failed[method, nfe])
        counts, (family, learn) = self.counts, FITS[method]
        options: dict[str, Any] = {}
        if family in BASES:
            options = {"iterations": counts.iterations, "learning_rate": counts.learning_rate}
        which = f"{self.name} {method} {nfe} NFE {plan.budget(method, counts)} {counts.tolerance:g} seed {self.seed}"
        checkpoint = self.folder / f"{plan.file_name(which)}.checkpoint"
        batches = range(-(-counts.paths // counts.batch_size))
        for index in tqdm(batches, desc="exact paths", unit="batch", disable=not self.progress):
            self.bank.paths(self.seed, index)  # the fit itself would be content with those that the budget allows
        solver = fitting.fit(
            self.model,
            nfe=nfe,
            family=families.make(family, nfe, learn, self.model.scales_noise),
            seed=self.seed,
            paths=counts.paths,
            validation_paths=counts.choose,
            bank=self.bank,
            checkpoint=checkpoint,
            progress=self.progress,
            **options,
        )
        checkpoint.unlink(missing_ok=True)
        course = solver.fit["history"]
        return {
            **{name: solver.fit[name] for name in ("objective", "iterations", "best_iteration")},
            **{name: solver.fit[name] for name in ("seconds", "evaluations")},
            "history": [[i, None, None if error is None else float(f"{error:.4g}")] for i, _, error, *_ in course],
            "family": solver.family,
            "theta": solver.theta,
            "table": numbers_of(solver.table),
        }

    def sprites(self, methods: Sequence[str]) -> None:
        """The first samples of the methods beside the exact ones, as a viewer shows them: alike, whatever the NFE."""
        at = [n for n in self.counts.nfe if n in SHOWN_AT] or self.counts.nfe[: len(SHOWN_AT)]
        jobs = [(n, method) for n, method in self._jobs(methods) if n in at]
        if not self.about()["can_be_shown"]:
            return

        def compute(method: str, nfe: int) -> Record:
            layout = gallery.layout(self.model, self.report, SPRITES, [PICTURES])
            few = self.report.first(layout.shown)
            x = few.x1 if method == EXACT else few.sample(self.table(method, nfe), self.model)
            height = None if layout.size is None else self.model.pictures(x[:1]).shape[-2]
            return layout._asdict() | {"height": height, "pictures": gallery.drawn(self.model, x, layout)}

        for nfe, method in [(0, EXACT), *jobs]:
            with self.going_on(method, nfe):
                self.cell("samples", method, nfe, partial(compute, method, nfe))

    @torch.no_grad()
    def paths(self, methods: Sequence[str]) -> None:
        """The exact paths of some samples and those of the methods, in the plane of their principal components."""
        nfe = plan.paths_at(self.counts.nfe)

        def compute() -> Record:
            assert nfe is not None
            few = self.bank.noise("report", self.seed, 0).first(PATHS_SHOWN)
            exact = solve(self.model, few, rtol=self.bank.rtol, atol=self.bank.atol)
            path = exact.at(torch.linspace(self.model.t_lo, 1, 60, dtype=torch.float64)).x
            u = self.model.bind(few.condition)
            runs = {m: list(states(self.table(m, nfe), u, few.x0))[:: TABLEAUS["midpoint"].stages] for m in methods}
            return {"planes": [tracks.in_plane(path[:, i], runs, i) for i in range(len(few.x0))]}

        if nfe is not None and self.about()["model_is"]["shape"] != [1]:
            with self.going_on(RK2_BESPOKE, nfe):
                self.cell("paths", RK2_BESPOKE, nfe, compute)


def _described(model: Model) -> dict[str, Any]:
    """What the cells say of a model: long lists of numbers by their length, since the fingerprint knows them."""
    described = describe(model)
    if len(alphas := described["schedule"].get("alphas_cumprod", ())) > 2:
        described["schedule"]["alphas_cumprod"] = [len(alphas), *(alphas[i] for i in (0, len(alphas) // 2, -1))]
    return described


def _as_described(cell: Record) -> dict[str, Any]:
    """The description in a model's cell, in which the fingerprint stands apart: it is not for readers."""
    return {**cell["model_is"], "fingerprint": cell.get("fingerprint")}
