"""Time grids compared at the price of one evaluation each: the exact paths say what a table's rows would leave over.

A fitted table meets velocities near those of the exact paths, which their dense output gives. So rows are regressed on
x0, the network's u_0 = u(t_0, a_0 x0), and dx/dt of the exact paths in the place of u_1, ..., u_{n-1}. What row k
leaves over enters u_k, and with it all rows after it: a grid's score is E log of the sum of its rows' square errors.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.reference import Paths
from bespoke_solvers.regression import AT_ONCE, RIDGE, damped_solve, log_mean, sample_weights
from bespoke_solvers.schedules import float64
from bespoke_solvers.velocity import expand

MOST = 128  # paths by which grids are compared


@torch.no_grad()
def screen(grids: Sequence[Float[Tensor, " n"]], batches: Sequence[Paths], scale: float | None = None) -> list[float]:
    """The score of each grid, the lower the better; infinite where the velocity overflows. scale: a_0, if it is held.

    Grids that begin at the same time share the evaluation of u there.
    """
    grams: list[list[Tensor]] = [[] for _ in grids]
    room = MOST
    for paths in batches:
        begun: dict[float, Tensor] = {}
        for t, found in zip(grids, grams, strict=True):
            if t[0].item() not in begun:
                begun[t[0].item()] = _first_velocity(paths, t[:1], scale)
            found.append(_grams(paths.split(room)[0], t, begun[t[0].item()][:room]))
        room -= len(paths.x1)
        if room <= 0:
            break
    return [_score(torch.cat(found), len(t)) for t, found in zip(grids, grams, strict=True)]


def _first_velocity(paths: Paths, t: Float[Tensor, " 1"], scale: float | None) -> Tensor:
    """u_0 = u(t_0, a_0 x0), where a_0 x0 is the regression of x(t_0) on x0."""
    x0 = paths.noise.x0
    a = scale
    if a is None:
        basis = float64(x0)
        a = (float64(paths.at(t).x[0]) * basis).sum().div(basis.square().sum()).item()
    return paths.model.bind(paths.noise.condition)(t[0].to(x0), a * x0)


def _grams(paths: Paths, t: Float[Tensor, " n"], u_0: Tensor) -> Float[Tensor, "b m m"]:
    """The inner products of x0, u_0, ..., u_{n-1}, x(t_1), ..., x(t_{n-1}), x(1) in each sample, a few at a time."""
    size = max(1, AT_ONCE // ((2 * len(t) + 1) * u_0[0].numel()))
    found = []
    for part, u in zip(paths.split(size), torch.split(u_0, size), strict=True):
        x, dx = part.at(t)
        vectors = float64(torch.cat([part.noise.x0[None], u[None], dx[1:], x[1:], part.x1[None]])).flatten(2)
        found.append((torch.einsum("ibd,jbd->bij", vectors, vectors) / vectors.shape[-1]).cpu())
    return torch.cat(found)


def _score(grams: Float[Tensor, "b m m"], n: int) -> float:
    """E log of the square errors of rows 1 to n in all: with equal weights first, then with those that these give."""
    if not grams.isfinite().all():
        return float("inf")
    weights = torch.ones(len(grams), dtype=torch.float64)
    for _ in range(2):
        total = (expand(weights, grams) * grams).sum(0)
        errors = []
        for k in range(1, n + 1):
            c = total.new_zeros(2 * n + 1)  # of the row, with -1 for what it is to give
            c[: k + 1] = damped_solve(total[: k + 1, : k + 1], total[: k + 1, n + k], RIDGE)
            c[n + k] = -1
            errors.append((grams @ c @ c).clamp(min=torch.finfo(torch.float32).tiny))
        (weights,) = sample_weights(errors[-1:])
    return log_mean([torch.stack(errors).sum(0)])
