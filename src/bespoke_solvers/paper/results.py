"""What the store says: the cells of a run, by model, method and NFE."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bespoke_solvers.cells import Record, Store, table_of
from bespoke_solvers.evaluation import ENOUGH
from bespoke_solvers.fid import ENOUGH as FID_ENOUGH
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.lab import EXACT
from bespoke_solvers.paper.plan import RK2, RK2_BESPOKE, Counts, Experiment
from bespoke_solvers.paper.printed import CIFAR10, SIDES
from bespoke_solvers.solver import Solver

PARAMETERISATIONS = {  # the paper's names, by path and prediction
    ("CondOT", "flow"): "FM-OT",
    ("Cosine", "flow"): "FM/v-CS",
    ("Cosine", "v"): "FM/v-CS",
    ("VP", "epsilon"): "eps-VP",
    ("DiscreteVP", "epsilon"): "eps-VP",
}


@dataclass(frozen=True)
class Results:
    """The cells of some models at given counts; what was not measured is not there.

    training: the seconds that the training of models took, where that is known. failed: in this run, in words.
    """

    store: Store
    models: Sequence[str]
    experiments: Sequence[Experiment]
    counts: Counts
    seed: int
    training: Mapping[str, float] = field(default_factory=dict)
    failed: Sequence[str] = ()

    def record(self, model: str, measured: str, method: str, nfe: int) -> Record | None:
        """A cell, if it was measured."""
        return self.store.get(plan.key(model, measured, method, nfe, self.seed, self.counts))

    def about(self, model: str) -> Record:
        """What the model is, and its exact samples."""
        found = self.record(model, "model", EXACT, 0)
        if found is None:
            raise ValueError(f"there are no cells of {model} with these counts and this seed; measure them first")
        return found

    def parameterisation(self, model: str) -> str:
        """FM-OT, FM/v-CS or eps-VP by the model's path and prediction; others by the names of these: `VP, flow`."""
        described = self.about(model)["model_is"]
        path, prediction = described["schedule"]["name"], described["prediction"]
        return PARAMETERISATIONS.get((path, prediction), f"{path}, {prediction}")

    def title(self, model: str) -> str:
        """A model and its parameterisation."""
        return f"{model} ({self.parameterisation(model)})"

    def like(self, model: str) -> str:
        """The data of the paper whose pictures are as large as the model's samples, or the next smaller."""
        side = self.about(model)["model_is"]["shape"][-1]
        return max((data for data in SIDES if SIDES[data] <= side), key=SIDES.__getitem__, default=CIFAR10)

    def value(self, model: str, method: str, nfe: int, figure: str = "rmse") -> float | None:
        """A figure, infinite (a PSNR: minus that) where samples went astray; None where it was not measured.

        Samples that went astray have no cell of FID: theirs is infinite where the model's FID is measured at all.
        """
        judged = figure in ("fid", "kid")
        found = self.record(model, "fid" if judged else "error", method, nfe)
        if found is None:
            astray = judged and self.record(model, "fid", EXACT, 0) and self.value(model, method, nfe) == float("inf")
            return float("inf") if astray else None
        value: float | None = found.get(figure)
        return (float("-inf") if figure == "psnr" else float("inf")) if value is None else value

    def comparable(self, figure: str) -> Sequence[str]:
        """The models of which a figure can be compared: none where it is of too few samples."""
        counts = self.counts
        enough = counts.fid_samples >= FID_ENOUGH if figure == "fid" else counts.samples >= ENOUGH
        return self.models if enough else []

    def series(self, model: str, methods: Sequence[str], figure: str) -> dict[str, list[list[float | int]]]:
        """The finite figures of each method against NFE."""
        found: dict[str, list[list[float | int]]] = {}
        for method in methods:
            for nfe in plan.evaluations(method, self.counts.nfe):
                value = self.value(model, method, nfe, figure)
                if value is not None and abs(value) < float("inf"):
                    found.setdefault(method, []).append([nfe, value])
        return found

    def methods(self, model: str, experiment: Experiment) -> list[str]:
        """The methods of an experiment, the solvers of other models among them where it is about those."""
        others = [plan.transferred(name) for name in self.models if name != model]
        return [*experiment.methods, *(others if experiment is plan.TRANSFER else [])]

    def measured(self, model: str, method: str, kind: str = "error") -> bool:
        """Whether there is a cell of that kind of a method, with some NFE."""
        return any(self.record(model, kind, method, nfe) for nfe in plan.evaluations(method, self.counts.nfe))

    def missing(self, experiment: Experiment) -> list[str]:
        """What an experiment is about and was measured for no model: methods, or a model that it is for."""
        kind = {plan.SAMPLES: "samples", plan.ITERATIONS: "fit", plan.THETA: "fit"}.get(experiment, "error")
        models = [model for model in self.models if self.applies(model, experiment)]
        if not models:
            return [f"a model on the path {' or '.join(experiment.paths)}"]
        found = {name for m in models for name in self.methods(m, experiment) if self.measured(m, name, kind)}
        missing = [name for name in experiment.methods if name not in found]
        if experiment is plan.TRANSFER and not any(map(plan.source_of, found)):
            missing.append(plan.transferred("another model"))
        return missing

    def without(self, experiment: Experiment) -> list[str]:
        """The models that an experiment is for and has nothing of."""
        kind = {plan.SAMPLES: "samples", plan.PATHS: "paths", plan.ITERATIONS: "fit", plan.THETA: "fit"}.get(experiment)
        models = [model for model in self.models if self.applies(model, experiment)]
        if kind is None:
            return [model for model in models if model not in self.shown(experiment)]
        return [m for m in models if not any(self.measured(m, name, kind) for name in experiment.methods)]

    def applies(self, model: str, experiment: Experiment) -> bool:
        """Whether an experiment is for this model."""
        return not experiment.paths or self.about(model)["model_is"]["schedule"]["name"] in experiment.paths

    def shown(self, experiment: Experiment) -> list[str]:
        """The models that an experiment is drawn for: those of which more was measured than all experiments share."""
        return self._with_its_own(experiment, "error")

    def judged(self, experiment: Experiment) -> list[str]:
        """The models whose FID is drawn for an experiment: by the same rule."""
        return self._with_its_own(experiment, "fid")

    def _with_its_own(self, experiment: Experiment, kind: str) -> list[str]:
        models = [model for model in self.models if self.applies(model, experiment)]
        own = {m: [name for name in self.methods(m, experiment) if name not in (RK2, RK2_BESPOKE)] for m in models}
        return [m for m in models if any(self.measured(m, name, kind) for name in own[m])] or models

    def samples(self, model: str) -> tuple[Record | None, dict[tuple[str, int], tuple[Record, Record]]]:
        """The cell of the exact samples that are shown, and by method and NFE that of others, with that of errors."""
        found = {}
        for method in plan.SAMPLES.methods:
            for nfe in plan.evaluations(method, self.counts.nfe):
                shown, error = (self.record(model, kind, method, nfe) for kind in ("samples", "error"))
                if shown and error:
                    found[method, nfe] = shown, error
        return self.record(model, "samples", EXACT, 0), found

    def fits(self, model: str, method: str = RK2_BESPOKE) -> Iterator[tuple[int, Record]]:
        """The fits of a method by NFE."""
        for nfe in plan.evaluations(method, self.counts.nfe):
            found = self.record(model, "fit", method, nfe)
            if found is not None:
                yield nfe, found

    def solvers(self, model: str, method: str = RK2_BESPOKE) -> list[Solver]:
        """Those that came out of the fits of a method."""
        return [Solver(table_of(found), found["family"], found["theta"]) for _, found in self.fits(model, method)]

    def planes(self, model: str) -> list[dict[str, list[list[float]]]]:
        """The sampling paths of some samples in their planes."""
        at = plan.paths_at(self.counts.nfe)
        found = None if at is None else self.record(model, "paths", RK2_BESPOKE, at)
        return found["planes"] if found else []

    def cells(self, *models: str) -> list[Record]:
        """All cells of these models (all, if none is named), these counts and this seed."""
        return [r for model in models or self.models for r in self.store.of(model) if self._of_this_run(r)]

    def _of_this_run(self, record: Record) -> bool:
        return record is self.record(record["model"], record["measured"], record["method"], record["nfe"])
