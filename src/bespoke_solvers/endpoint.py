"""The end point as a function of all numbers of a family, and its derivatives from evaluations of u alone."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bespoke_solvers.families import Family
from bespoke_solvers.gauss_newton import Linearised, Problem
from bespoke_solvers.metrics import norm
from bespoke_solvers.reference import Paths
from bespoke_solvers.table import Table, combine, sample, states
from bespoke_solvers.velocity import Model, Velocity


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
