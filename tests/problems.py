"""Problems with known answers, shared by the tests."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bespoke_solvers.families import NonStationary
from bespoke_solvers.generic import RK4, baseline, step
from bespoke_solvers.grids import warp
from bespoke_solvers.reference import Paths, solve
from bespoke_solvers.regression import closed_form
from bespoke_solvers.schedules import EDM, VP, CondOT, Cosine, DiscreteVP, Schedule
from bespoke_solvers.table import Table
from bespoke_solvers.toy import mixture_velocity
from bespoke_solvers.velocity import Counter, Model, Velocity

F64 = torch.float64


def stable_diffusion_alphas(zero_terminal: bool = False) -> tuple[float, ...]:
    """The scaled-linear betas of Stable Diffusion; with zero terminal snr as Lin et al. 2023 rescale it."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=F64) ** 2
    alphas = (1 - betas).cumprod(0).sqrt()
    if zero_terminal:
        alphas = (alphas - alphas[-1]) * alphas[0] / (alphas[0] - alphas[-1])
    return tuple((alphas**2).tolist())


SCHEDULES: dict[str, Schedule] = {
    "CondOT": CondOT(),
    "Cosine": Cosine(),
    "VP": VP(),
    "EDM": EDM(),
    "discrete": DiscreteVP(stable_diffusion_alphas()),
    "zero-terminal": DiscreteVP(stable_diffusion_alphas(zero_terminal=True)),
}

CENTRES = torch.tensor([[0.6, -0.4, 0.1], [-0.7, 0.2, 0.5], [0.1, 0.9, -0.6], [0.3, 0.3, 0.8]], dtype=F64)
STD = 0.3


def mixture(schedule: Schedule) -> Velocity:
    """The exact velocity of four Gaussians in three dimensions."""
    return mixture_velocity(CENTRES, STD, schedule)


def points(count: int = 8, seed: int = 0) -> Tensor:
    """Random points of the size of the mixtures above, in float64."""
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)


class Linear:
    """dx/dt = A x with a known solution and Lipschitz constant."""

    def __init__(self, lipschitz: float, dim: int = 3, seed: int = 0) -> None:
        A = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)
        self.A = lipschitz * A / torch.linalg.matrix_norm(A, 2)

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        return x @ self.A.T

    def path(self, t: Tensor, x0: Tensor) -> Tensor:
        return torch.stack([x0 @ torch.linalg.matrix_exp(self.A * tau).T for tau in t])


class Sine:
    """dx/dt = L sin(pi t + x): nonlinear, time-dependent, Lipschitz constant L."""

    def __init__(self, lipschitz: float) -> None:
        self.L = lipschitz

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        return self.L * torch.sin(math.pi * t.reshape(-1, *[1] * (x.ndim - 1)) + x)


def model_of(u: Velocity, dim: int = 3) -> Model:
    """A float64 model on [0, 1]."""
    return Model(velocity=u, shape=(dim,), schedule=CondOT(), dtype=F64)


def solve_finely(u: Velocity, grid: Tensor, x: Tensor) -> Tensor:
    """x after one RK4 step for each interval of the grid (a table's cost would grow with its square)."""
    for t, t_next in pairwise(grid):
        x = step(RK4, u, t, x, t_next - t)
    return x


def exactly(model: Model, count: int = 8, first: int = 0, tolerance: float = 1e-6) -> Paths:
    """A batch of exact paths."""
    return solve(model, model.noise(range(first, first + count)), rtol=tolerance, atol=tolerance)


def non_stationary(model: Model, nfe: int = 3) -> NonStationary:
    """The closed form's place to begin."""
    return NonStationary(closed_form(warp(model, nfe, 0.07 * nfe, 1.0, 0.8), [exactly(model)]).table.off(model))


def ones(batches: Sequence[Paths]) -> list[Tensor]:
    """Equal weights."""
    return [torch.ones(len(paths.x1), dtype=F64) for paths in batches]


def counted(batches: Sequence[Paths]) -> tuple[list[Paths], Counter]:
    """The same paths with a velocity that counts, and its counter."""
    counter = Counter(batches[0].model.velocity)
    model = dataclasses.replace(batches[0].model, velocity=counter)
    return [dataclasses.replace(paths, model=model) for paths in batches], counter


def full_table(nfe: int, seed: int = 0) -> Table:
    """A sensible table in which no number is zero."""
    generator = torch.Generator().manual_seed(seed)
    euler = baseline("euler", nfe)
    a, b = (0.2 * torch.rand(value.shape, generator=generator, dtype=F64) for value in (euler.a, euler.b))
    return Table(0.05 + 0.9 * euler.t, euler.a + a, (euler.b + b).tril(-1))
