"""Explicit Runge-Kutta methods as tables (paper, eq. 4 and 5; Algorithm 1)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.table import Table, trace
from bespoke_solvers.velocity import Velocity


@dataclass(frozen=True)
class Tableau:
    """Butcher's numbers of an explicit method: k_j = u(t + c_j h, x + h sum_l a_jl k_l), step h sum_j b_j k_j."""

    name: str
    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]

    def __post_init__(self) -> None:
        if [len(row) for row in self.a] != list(range(len(self.b))):
            raise ValueError(
                f"{self.name}: row j of a must hold j numbers for j = 0..{len(self.b) - 1}, got rows of "
                f"{[len(row) for row in self.a]}"
            )
        if abs(sum(self.b) - 1) > 1e-12:
            raise ValueError(f"{self.name}: b must sum to 1, got {sum(self.b)}")
        if len(self.c) != len(self.b) or any(abs(sum(row) - c) > 1e-12 for row, c in zip(self.a, self.c, strict=True)):
            raise ValueError(f"{self.name}: c_j must be the sum of row j of a, got c = {self.c}")
        if any(not 0 <= c <= 1 for c in self.c):
            raise ValueError(f"{self.name}: stages must lie inside the step, got c = {self.c}")

    @property
    def stages(self) -> int:
        """Evaluations in a step."""
        return len(self.b)


EULER = Tableau("euler", 1, a=((),), b=(1.0,), c=(0.0,))
MIDPOINT = Tableau("midpoint", 2, a=((), (1 / 2,)), b=(0.0, 1.0), c=(0.0, 1 / 2))
HEUN = Tableau("heun", 2, a=((), (1.0,)), b=(1 / 2, 1 / 2), c=(0.0, 1.0))
RK4 = Tableau(
    "rk4",
    4,
    a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
    b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    c=(0.0, 1 / 2, 1 / 2, 1.0),
)
DOPRI5 = Tableau(  # Dormand & Prince 1980; its seventh stage is the next step's first
    "dopri5",
    5,
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
)

TABLEAUS = {tableau.name: tableau for tableau in (EULER, MIDPOINT, HEUN, RK4)}


def weighted_sum(weights: tuple[float, ...], ks: list[Tensor]) -> Tensor | float:
    """sum_j weights_j k_j, over the weights that are not zero."""
    return sum((weight * k for weight, k in zip(weights, ks, strict=True) if weight), 0.0)


def stages(
    tableau: Tableau, u: Velocity, t: Tensor, x: Tensor, h: Tensor | float, first: Tensor | None = None
) -> list[Tensor]:
    """The velocities k_j of one step; the first one, u(t, x), may be known already."""
    ks = [] if first is None else [first]
    for c, row in list(zip(tableau.c, tableau.a, strict=True))[len(ks) :]:
        ks.append(u(t + c * h, x + h * weighted_sum(row, ks)))
    return ks


def step(tableau: Tableau, u: Velocity, t: Tensor, x: Tensor, h: Tensor | float) -> Tensor:
    """x at t + h."""
    return x + h * weighted_sum(tableau.b, stages(tableau, u, t, x, h))


def uniform_grid(n: int) -> Float[Tensor, " m"]:
    """n steps of equal length from 0 to 1."""
    return torch.linspace(0, 1, n + 1, dtype=torch.float64)


def runge_kutta(tableau: Tableau, grid: Float[Tensor, " m"]) -> Table:
    """The table of one step of the method for each interval of an increasing time grid."""
    grid = grid.double()
    if grid.ndim != 1 or len(grid) < 2 or not bool((grid.diff() > 0).all()):
        raise ValueError(f"a time grid must be increasing with two times at least, got {grid.tolist()}")

    def method(u: Velocity, x: Tensor) -> Tensor:
        for t, t_next in pairwise(grid):
            x = step(tableau, u, t, x, t_next - t)
        return x

    return trace(method, (len(grid) - 1) * tableau.stages)


def steps_for(tableau: Tableau, nfe: int) -> int:
    """How many steps the method does with `nfe` evaluations; refuses a number that leaves some over."""
    if nfe < 1 or nfe % tableau.stages:
        raise ValueError(
            f"{tableau.name} spends {tableau.stages} evaluations on each step, so nfe must be a positive multiple "
            f"of {tableau.stages}, got {nfe}"
        )
    return nfe // tableau.stages


def baseline(name: str, nfe: int) -> Table:
    """The named method with `nfe` evaluations in steps of equal length."""
    if name not in TABLEAUS:
        raise ValueError(f"unknown method {name!r}; expected one of {', '.join(TABLEAUS)}")
    tableau = TABLEAUS[name]
    return runge_kutta(tableau, uniform_grid(steps_for(tableau, nfe)))
