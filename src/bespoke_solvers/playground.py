"""What the app shows for a choice: a baseline, a solver and the exact solution, from the same noise."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bespoke_solvers import dedicated, pictures
from bespoke_solvers.comparison import name_of
from bespoke_solvers.evaluation import Quality
from bespoke_solvers.metrics import psnr, rmse
from bespoke_solvers.reference import solve
from bespoke_solvers.report import significant
from bespoke_solvers.solver import Solver
from bespoke_solvers.table import Table, sample
from bespoke_solvers.velocity import Counter, Model, Noise, map_condition

K = TypeVar("K")
V = TypeVar("V")

EXACT = "exact"
FREE = range(4, 21)  # the NFE to choose from where no solver says which it has
MOST, KEPT = 4096, 16  # samples of one drawing; drawings whose exact samples are kept


@dataclass(frozen=True)
class Choice:
    """What to draw: the samples of the seeds `seed`, `seed` + 1, ...

    solver: one of the playground's, or None. baseline: one that `dedicated.baseline` knows, `ipndm@log-snr:0.05` say.
    label: the number of one of the model's labels, for all samples; None draws one with each seed's noise. guidance:
    None for the model's own.
    """

    model: str
    solver: str | None
    nfe: int
    baseline: str = "midpoint"
    seed: int = 0
    samples: int = 4
    label: int | None = None
    guidance: float | None = None


class StoppedError(Exception):
    """A drawing was given up for another."""


class Drawn(NamedTuple):
    """Samples, the evaluations of the model that each took, and the seconds that all took together."""

    x1: Tensor
    evaluations: int
    seconds: float


class Panel(NamedTuple):
    """The samples of one solver as a PNG, if they can be drawn, their cost, and how close they are to the exact ones.

    note: what the samples depend on beside their evaluations: the grid of a baseline, the tolerance of the exact ones.
    is_plot: whether the PNG is a plot of points of the plane, rather than pictures, whose pixels are to be seen.
    quality: None for the exact samples themselves, and as long as these are not there.
    """

    name: str
    picture: bytes | None
    is_plot: bool
    evaluations: int
    seconds: float
    quality: Quality | None
    note: str = ""

    @property
    def cost(self) -> str:
        """`8 evaluations, 0.12 s`."""
        return f"{self.evaluations} evaluation{'s' * (self.evaluations != 1)}, {significant(self.seconds)} s"

    @property
    def closeness(self) -> str:
        """`RMSE 0.0123, PSNR 45.6 dB`, if known."""
        if self.quality is None:
            return ""
        if not all(map(math.isfinite, self.quality)):
            return "samples that are not finite"
        return f"RMSE {significant(self.quality.rmse)}, PSNR {self.quality.psnr:.1f} dB"


class Drawing(NamedTuple):
    """The panels that are there, the names of those to come, and what is to be said of them."""

    panels: list[Panel]
    waiting: list[str]
    remarks: list[str]

    @property
    def summary(self) -> str:
        """What the solver saves, and what it loses, against the exact samples and the baseline; empty until known."""
        if self.waiting or len(self.panels) < 3:
            return ""
        baseline, own, exact = self.panels
        if own.quality is None or baseline.quality is None or not all(map(math.isfinite, own.quality)):
            return ""
        text = f"{exact.evaluations / own.evaluations:.1f} times fewer evaluations than the exact solution"
        ratio = baseline.quality.rmse / own.quality.rmse if own.quality.rmse else math.inf
        if math.isfinite(ratio):
            times, than = (ratio, "closer to") if ratio >= 1 else (1 / ratio, "farther from")
            text += f"; {times:.1f} times {than} it than {baseline.name} with {baseline.evaluations}"
        return f"{own.name}: {text}."


class Playground:
    """Draws choices. One model is held at a time; exact samples are kept, so that another solver shows at once.

    load: gives a model by its name and a scale of guidance. solvers: by the names of their files.
    """

    def __init__(
        self,
        load: Callable[[str, float | None], Model],
        models: Sequence[str],
        solvers: Mapping[str, Sequence[Solver]],
        tolerance: float = 1e-5,
    ) -> None:
        self.load, self.models, self.tolerance = load, list(models), tolerance
        self.solvers = {name: {solver.nfe: solver for solver in several} for name, several in solvers.items()}
        self._held: tuple[str, float | None, Model] | None = None
        self._own_guidance: dict[str, float | None] = {}
        self._exact: dict[Choice, Drawn] = {}
        self._stopped = False
        self._doubts: dict[tuple[str, float | None, str, int], str | None] = {}

    def start(self, name: str) -> Choice:
        """The first choice for a model: its first solver at the lowest NFE, as it was fitted."""
        solver = next(iter(self.solvers), None)
        return Choice(name, solver, self.nfe(solver)[0], samples=self.samples(name), guidance=self.scale(solver))

    def nfe(self, solver: str | None) -> list[int]:
        """Those to choose from."""
        return list(FREE) if solver is None else sorted(_among(self.solvers, solver, "solver"))

    def scale(self, solver: str | None) -> float | None:
        """The guidance that the solver was fitted for."""
        several = {} if solver is None else _among(self.solvers, solver, "solver")
        return next((each.model.get("guidance") for each in several.values()), None)

    def samples(self, name: str) -> int:
        """How many samples to begin with: a few pictures, or many points."""
        return 1000 if self.model(name).shape == (2,) else 4

    def model(self, name: str, guidance: float | None = None) -> Model:
        """The model with that guidance."""
        if name not in self.models:
            raise ValueError(f"there is no model {name!r} here; expected one of {', '.join(self.models)}")
        asked = None if guidance is not None and self._own_guidance.get(name) == guidance else guidance
        if self._held is None or self._held[:2] != (name, asked):
            self._held = None  # before the next one is loaded, which may need the memory
            self._held = name, asked, self.load(name, asked)
            if asked is None:
                self._own_guidance[name] = self._held[2].guidance
        return self._held[2]

    def stop(self) -> None:
        """End the drawing under way, perhaps in another thread, at its next evaluation of the model."""
        self._stopped = True

    def _stoppable(self, model: Model) -> Model:
        def velocity(*arguments: Any) -> Tensor:
            if self._stopped:
                raise StoppedError
            return model.velocity(*arguments)

        return replace(model, velocity=velocity)

    @torch.no_grad()
    def draw(self, choice: Choice) -> Iterator[Drawing]:
        """First what is to come, then the baseline and the solver, then all with the exact samples."""
        self._stopped = False
        self._check(choice)
        model = self._stoppable(self.model(choice.model, choice.guidance))
        tables, remarks = self._tables(choice, model)
        noise = _noise(model, choice)
        yield Drawing([], [*(name for name, _, _ in tables), EXACT], remarks)
        start = torch.tensor(model.t_lo).to(noise.x0)
        model.bind(noise.condition)(start, model.start_scale * noise.x0)  # or the first solver pays for warming up
        runs = [(name, note, _run(table, model, noise)) for name, note, table in tables]
        same_noise = replace(choice, solver=None, nfe=0, baseline="")
        if same_noise not in self._exact:
            yield Drawing([_panel(model, *each) for each in runs], [EXACT], remarks)
            self._exact[same_noise] = _solved(model, noise, self.tolerance)
            if len(self._exact) > KEPT:
                del self._exact[next(iter(self._exact))]
        exact = self._exact[same_noise]
        panels = [_panel(model, *each, exact) for each in runs]
        panels.append(_panel(model, EXACT, f"to a tolerance of {self.tolerance:g}", exact))
        yield Drawing(panels, [], remarks)

    def _check(self, choice: Choice) -> None:
        dedicated.grid_of(choice.baseline)  # which refuses what is none
        if choice.solver is not None:
            _among(self.solvers, choice.solver, "solver")
        for name, value, least, most in (("seed", choice.seed, 0, 2**63 - MOST), ("samples", choice.samples, 1, MOST)):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; expected a whole number from {least} to {most}")

    def _tables(self, choice: Choice, model: Model) -> tuple[list[tuple[str, str, Table]], list[str]]:
        """The tables, each with its name and its panel's note, and what else is to be said of them."""
        cost = next(n for n in itertools.count(max(choice.nfe, 1)) if dedicated.possible(choice.baseline, n))
        grid, table = dedicated.grid_of(choice.baseline), dedicated.baseline(choice.baseline, cost, model)
        tables, remarks = [(choice.baseline, f"on the grid {grid}" if grid else "", table)], []
        if cost != choice.nfe:
            remarks.append(f"{choice.baseline} cannot have {choice.nfe} evaluations; here it has {cost}")
        if choice.solver is not None:
            solver = _among(self.solvers[choice.solver], choice.nfe, "nfe")
            key = choice.model, choice.guidance, choice.solver, choice.nfe
            if key not in self._doubts:
                self._doubts[key] = solver.doubts(model)
            remarks += filter(None, [self._doubts[key]])
            tables.append((name_of(solver), "", solver.table))
        return tables, remarks


def _among(known: Mapping[K, V], key: K, what: str) -> V:
    if key not in known:
        raise ValueError(f"{what} {key} is not to be had here; expected one of {', '.join(map(str, known))}")
    return known[key]


def _noise(model: Model, choice: Choice) -> Noise:
    """That of the seeds, with the label chosen."""
    noise = model.noise(range(choice.seed, choice.seed + choice.samples))
    if choice.label is None:
        return noise
    number = choice.label
    if not 0 <= number < len(model.labels):
        raise ValueError(f"class {number} was asked for; the model has {len(model.labels)} classes, counted from 0")
    return noise._replace(condition=map_condition(lambda c: torch.full_like(c, number), noise.condition))


def _run(table: Table, model: Model, noise: Noise) -> Drawn:
    u, begun = Counter(model.bind(noise.condition)), time.perf_counter()
    x1 = sample(table, u, noise.x0).cpu()  # which waits for the device
    return Drawn(x1, u.calls, time.perf_counter() - begun)


def _solved(model: Model, noise: Noise, tolerance: float) -> Drawn:
    begun = time.perf_counter()
    paths = solve(model, noise, rtol=tolerance, atol=tolerance)
    return Drawn(paths.x1.cpu(), paths.evaluations, time.perf_counter() - begun)


def _panel(model: Model, name: str, note: str, run: Drawn, exact: Drawn | None = None) -> Panel:
    quality = exact and Quality(rmse(run.x1, exact.x1), psnr(run.x1, exact.x1))
    is_plot = model.decode is None and model.shape == (2,)
    picture = None
    if is_plot:
        picture = pictures.samples_png(run.x1, like=exact.x1 if exact else None)
    elif model.decode or pictures.is_picture(model.shape):
        decoded = model.pictures(run.x1.to(model.device)).nan_to_num(0, 1, -1)
        with_gaps = torch.nn.functional.pad(decoded, (0, 1, 0, 1), value=1.0)
        picture = pictures.samples_png(with_gaps, columns=math.ceil(math.sqrt(len(decoded))))
    return Panel(name, picture, is_plot, run.evaluations, run.seconds, quality, note)
