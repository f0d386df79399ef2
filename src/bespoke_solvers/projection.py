"""The end point as a function of the times alone (variable projection, Golub & Pereyra 1973)."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from bespoke_solvers.families import NonStationary
from bespoke_solvers.gauss_newton import Linearised, Problem
from bespoke_solvers.grids import straightness, times_of
from bespoke_solvers.reference import Paths
from bespoke_solvers.regression import Rows, closed_form, fit_rows, scratch
from bespoke_solvers.table import Table, TableError

LEAST = 1e-2  # of the difference that is asked for, below which there is no room for a time to move


class Projection(Problem):
    """The times alone, the rows being regressions inside.

    theta holds the steps of r = alpha / (alpha + sigma), whose sizes |theta| add up to increasing times.
    """

    def __init__(self, family: NonStationary, batches: Sequence[Paths]) -> None:
        super().__init__(batches)
        self.family = family
        ends = straightness(self.model.schedule, torch.tensor(self.model.domain, dtype=torch.float64))
        self.r_lo, self.r_hi = ends[:1], ends[1:]
        held = family.held_start(self.model)
        self.held = 0 if held is None else 1  # how many of the times
        if held is not None:
            self.r_lo = straightness(self.model.schedule, held)
        self.scale = family.held_scale(self.model)
        self.weights: list[Tensor] = []
        self.tables: dict[tuple[float, ...], Table] = {}  # of the candidates since the last linearisation

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
            return fit_rows(self.times(theta), self.batches, self.weights, scale=self.scale)
        return closed_form(self.times(theta), self.batches, scale=self.scale)

    def accept(self, theta: Tensor) -> Tensor:
        """Change the family to theta and its rows."""
        table = self.tables.get(tuple(theta.tolist())) or self.rows(theta).table
        self.family.load_table(table.off(self.model))
        return theta.abs()

    def samples(self, theta: Tensor) -> list[Tensor]:
        """y_n of each batch."""
        rows = self.rows(theta)
        self.tables[tuple(theta.tolist())] = rows.table
        return rows.samples

    def linearise(self, theta: Tensor, weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """Each time is moved, and the rows after it are fitted again."""
        self.weights, self.tables = weights, {}
        rows = self.rows(theta)
        columns = scratch(len(theta), rows.samples)
        room = (self.r_hi - self.r_lo - theta.sum()).clamp(min=0).item()
        for k in range(len(theta)):
            steps = min(difference, room / 2), -min(difference, theta[k].item() / 2)
            step = difference if difference <= room else max(steps, key=abs)
            there = rows.samples
            if abs(step) >= LEAST * difference:  # a time that cannot move changes nothing but its rounding
                moved = theta.clone()
                moved[k] += step
                with suppress(TableError):  # nor is anything learned where the velocity is not finite
                    there = fit_rows(
                        self.times(moved), self.batches, self.weights, rows, k + self.held, self.scale
                    ).samples
            for column, y_moved, y in zip(columns, there, rows.samples, strict=True):
                column[k] = (y_moved - y) / (step or 1.0)
        for y, column in zip(rows.samples, columns, strict=True):
            yield Linearised(y, column.to(y.device))
