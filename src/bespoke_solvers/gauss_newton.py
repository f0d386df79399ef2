"""Damped Gauss-Newton steps on the end point, E log MSE(y_n, x(1)), from evaluations of u alone.

The residual x(1) - y_n has thousands of entries in each sample, theta has tens of numbers. Its Jacobian is taken by
differences of u, one evaluation for each number of theta and each stage after it, so that no gradient of the network is
needed. log MSE is minimised by weighting the squares with 1 / (MSE + median MSE).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bespoke_solvers.families import Family, NonStationary
from bespoke_solvers.metrics import norm
from bespoke_solvers.precision import full_float32
from bespoke_solvers.reference import Paths
from bespoke_solvers.regression import (
    Rows,
    closed_form,
    errors,
    fit_rows,
    log_mean,
    on_disk,
    sample_weights,
    straightness,
    times_of,
)
from bespoke_solvers.schedules import float64
from bespoke_solvers.stages import Stage
from bespoke_solvers.table import Table, combine, sample, states
from bespoke_solvers.velocity import Model, Velocity

DIFFERENCES = (1e-3, 1e-2, 1e-1)  # how far an input is moved; more where the network is rounded to half precision
DAMPINGS = (1e4, 300.0, 10.0, 0.3, 1e-2, 3e-4, 1e-5, 3e-7)  # tried in each step
PAYS = 0.02  # nats of MSE (0.09 dB) that a step must gain for another one to be worth its cost


class Linearised(NamedTuple):
    """y_n of a batch and its derivatives by the numbers of theta."""

    y: Float[Tensor, "b *shape"]
    dy: Float[Tensor, "m b *shape"]


class Problem(ABC):
    """Samples as a function of theta."""

    def __init__(self, batches: Sequence[Paths]) -> None:
        self.batches, self.model = batches, batches[0].model

    @abstractmethod
    def start(self) -> Float[Tensor, " m"]:
        """theta of the family as it is."""

    @abstractmethod
    def accept(self, theta: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Change the family to theta; returns theta in the form to go on with."""

    @abstractmethod
    def samples(self, theta: Float[Tensor, " m"]) -> list[Tensor]:
        """y_n of each batch; a ValueError where theta gives no table."""

    @abstractmethod
    def linearise(self, theta: Float[Tensor, " m"], weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """y_n of each batch and its derivatives, by differences of that size; the weights are those of the samples."""


class GaussNewton(Stage):
    """The stage: theta, and each path's error there."""

    differentiates = False
    every = 1

    def __init__(self, problem: Problem) -> None:
        self.problem, self.theta = problem, problem.start()
        self.gain = math.inf
        self.errors: list[Tensor] = []
        self.smoothest = 0.0

    @property
    def finished(self) -> bool:
        """Whether the last step hardly paid."""
        return self.gain < PAYS

    @torch.no_grad()
    def step(self) -> float:
        """Linearise, damp (Levenberg's way, relative to Marquardt's diagonal), keep what is best; returns E log MSE.

        Inputs are moved about as far as the samples are off: a network is rougher in the small than a step is long.
        """
        if not self.errors:
            self.errors = self._errors(self.theta)
            self.smoothest = smoothest_difference(self.problem.batches[0])
        before = log_mean(self.errors)
        H, g = self._normal_equations(max(self.smoothest, min(math.exp(before / 2), DIFFERENCES[1])))
        scale = H.diagonal().sqrt().clamp(min=1e-30)
        H = H / scale[:, None] / scale
        best, theta, found, worse = before, self.theta, self.errors, 0
        for damping in DAMPINGS:
            damped = H + damping * torch.eye(len(H), dtype=H.dtype)
            candidate = self.theta + torch.linalg.solve(damped, g / scale) / scale
            try:
                there = self._errors(candidate)
            except ValueError:  # numbers that are no table
                break
            if log_mean(there) < best:
                best, theta, found, worse = log_mean(there), candidate, there, 0
            elif (worse := worse + 1) > 1 and best < before:
                break
        if best < before:
            self.theta, self.errors = self.problem.accept(theta), found
        self.gain = before - best
        return best

    def _errors(self, theta: Tensor) -> list[Tensor]:
        return errors(self.problem.samples(theta), self.problem.batches)

    def _normal_equations(self, difference: float) -> tuple[Tensor, Tensor]:
        m, batches = len(self.theta), self.problem.batches
        H, g = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
        weights = sample_weights(self.errors)
        with full_float32(batches[0].x1.device):  # TF32 is noise in the differences
            linearised = self.problem.linearise(self.theta, weights, difference)
            for (y, dy), paths, weight in zip(linearised, batches, weights, strict=True):
                J, residual = float64(dy).flatten(2), float64(paths.x1 - y).flatten(1)
                weighted = J * weight.to(J)[:, None]
                H += torch.einsum("ibd,jbd->ij", weighted, J).cpu()
                g += torch.einsum("ibd,bd->i", weighted, residual).cpu()
        if not (H.isfinite().all() and g.isfinite().all()):
            raise ValueError("the velocity is not finite near the solver's own points; it must be finite everywhere")
        return H, g

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the family's numbers."""
        return {name: getattr(self, name) for name in ("theta", "gain", "errors", "smoothest")}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        for name, value in state.items():
            setattr(self, name, value)


def smoothest_difference(paths: Paths) -> float:
    """The difference whose derivatives of u, forwards and backwards, agree best: large steps bend, small ones round."""
    x0, u = paths.noise.x0, paths.model.bind(paths.noise.condition)
    t = torch.tensor([(paths.model.t_lo + paths.model.t_hi) / 2], dtype=torch.float64)
    x = paths.at(t).x[0]
    with full_float32(x0.device):
        here, *there = (u(t[0].to(x), x + h * x0) for h in (0.0, *DIFFERENCES, *(-h for h in DIFFERENCES)))
    forwards, backwards = there[: len(DIFFERENCES)], there[len(DIFFERENCES) :]
    bends = [
        norm(more + less - 2 * here).mean() / norm(more - less).mean()
        for more, less in zip(forwards, backwards, strict=True)
    ]
    return DIFFERENCES[int(torch.stack(bends).nan_to_num(torch.inf).argmin())]


class EndPoint(Problem):
    """All numbers of a family at once."""

    def __init__(self, family: Family, batches: Sequence[Paths]) -> None:
        super().__init__(batches)
        self.family = family
        self.learned = {name: p for name, p in family.named_parameters() if p.requires_grad}

    def start(self) -> Tensor:
        """theta of the family as it is."""
        return parameters_to_vector(self.learned.values()).detach().clone()

    def accept(self, theta: Tensor) -> Tensor:
        """Change the family to theta."""
        vector_to_parameters(theta.clone(), self.learned.values())
        return theta

    def table(self, theta: Tensor) -> Table:
        """The table on the model, differentiably."""
        parts = torch.split(theta, [p.numel() for p in self.learned.values()])
        table: Table = torch.func.functional_call(self.family, dict(zip(self.learned, parts, strict=True)), ())
        return table.on(self.model)

    def samples(self, theta: Tensor) -> list[Tensor]:
        """y_n of each batch."""
        table = self.table(theta)
        return [sample(table, paths.model.bind(paths.noise.condition), paths.noise.x0) for paths in self.batches]

    def linearise(self, theta: Tensor, weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """Tangents go through the table exactly, and through u by differences."""

        def numbers(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            table = self.table(theta)
            return table.t, table.a, table.b

        with torch.enable_grad():
            jacobian = torch.autograd.functional.jacobian(numbers, theta, vectorize=True)  # type: ignore[no-untyped-call]
        tangents = [Tangent(*(part[..., i] for part in jacobian)) for i in range(len(theta))]
        for paths in self.batches:
            yield push_forward(self.table(theta), tangents, paths, difference)


class Tangent(NamedTuple):
    """A direction in the space of tables."""

    dt: Float[Tensor, " n"]
    da: Float[Tensor, " n+1"]
    db: Float[Tensor, "n+1 n"]


def push_forward(table: Table, tangents: Sequence[Tangent], paths: Paths, difference: float) -> Linearised:
    """y_n, and how it moves when the table moves along each of the tangents.

    dy_k = da_k x0 + sum_j db_kj u_j + b_kj du_j, and du_k is the derivative of u at (t_k, y_k) along (dt_k, dy_k): one
    evaluation for each stage from the first one that moves.
    """
    x0, u = paths.noise.x0, paths.model.bind(paths.noise.condition)
    us: list[Tensor] = []

    def kept(t: Tensor, y: Tensor) -> Tensor:
        us.append(u(t, y))
        return us[-1]

    *ys, y_n = states(table, kept, x0)
    columns = []
    for dt, da, db in tangents:
        dus: dict[int, Tensor] = {}  # those that are not zero
        for k in range(table.nfe + 1):
            dy = combine(da[k], db[k], x0, us[:k]) if da[k] or db[k].any() else torch.zeros_like(x0)
            for j, du in dus.items():
                dy = dy + table.b[k, j].to(x0) * du
            if k < table.nfe and (dt[k] or dy.any()):
                at = table.t[k].to(x0), ys[k], us[k]
                dus[k] = _along(paths.model, u, *at, dt[k].to(x0), dy, difference)
        columns.append(dy)
    return Linearised(y_n, torch.stack(columns))


def _along(model: Model, u: Velocity, t: Tensor, y: Tensor, u_y: Tensor, dt: Tensor, dy: Tensor, by: float) -> Tensor:
    """The derivative of u at (t, y) along (dt, dy), backwards where it would leave the domain forwards."""
    h = by / torch.maximum(norm(dy).mean(), dt.abs())
    h = h if model.t_lo <= t + h * dt <= model.t_hi else -h
    return (u(t + h * dt, y + h * dy) - u_y) / h


class Projection(Problem):
    """The times alone, the rows being regressions inside (variable projection, Golub & Pereyra 1973).

    theta holds the steps of r = alpha / (alpha + sigma), whose sizes |theta| add up to increasing times.
    """

    def __init__(self, family: NonStationary, batches: Sequence[Paths]) -> None:
        super().__init__(batches)
        self.family = family
        ends = straightness(self.model.schedule, torch.tensor(self.model.domain, dtype=torch.float64))
        self.r_lo, self.r_hi = ends[:1], ends[1:]
        self.held = 0 if family.learn_start else 1  # how many of the times
        self.weights: list[Tensor] = []

    def start(self) -> Tensor:
        """theta of the family's times; its rows are replaced."""
        times = self.family().detach().on(self.model).t
        return torch.cat([self.r_lo, straightness(self.model.schedule, times)]).diff()[self.held :]

    def times(self, theta: Tensor) -> Tensor:
        """t_k = t(r_lo + sum_{j<=k} |theta_j|), at most t_hi."""
        return times_of(self.model, self.r_lo + torch.cat([theta.new_zeros(self.held), theta]).abs().cumsum(0))

    def rows(self, theta: Tensor) -> Rows:
        """The regressions at these times, with the weights that the last linearisation had."""
        if self.weights:
            return fit_rows(self.times(theta), self.batches, self.weights)
        return closed_form(self.times(theta), self.batches)

    def accept(self, theta: Tensor) -> Tensor:
        """Change the family to theta and its rows."""
        self.family.load_table(self.rows(theta).table.off(self.model))
        return theta.abs()

    def samples(self, theta: Tensor) -> list[Tensor]:
        """y_n of each batch."""
        return self.rows(theta).samples

    def linearise(self, theta: Tensor, weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """Each time is moved, and the rows after it are fitted again."""
        self.weights = weights
        rows = self.rows(theta)
        columns = [on_disk((len(theta), *y.shape), y.dtype) for y in rows.samples]
        room = (self.r_hi - self.r_lo - theta.sum()).clamp(min=0).item()
        for k in range(len(theta)):
            steps = min(difference, room / 2), -min(difference, theta[k].item() / 2)
            step = difference if difference <= room else max(steps, key=abs)
            moved = theta.clone()
            moved[k] += step
            there = fit_rows(self.times(moved), self.batches, self.weights, rows, first=k + self.held)
            for column, y_moved, y in zip(columns, there.samples, rows.samples, strict=True):
                column[k] = (y_moved - y) / (step or 1)  # a time that cannot move changes nothing
        for y, column in zip(rows.samples, columns, strict=True):
            yield Linearised(y, column.to(y.device))
