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
from bespoke_solvers.schedules import float64
from bespoke_solvers.table import Table, sample, states
from bespoke_solvers.velocity import expand, map_condition

DIRECTIONS = 16  # along which a stage's u is differentiated in each sample
TOGETHER = 2**20  # numbers (samples times their size) in one call on a GPU, where a batch has fewer
LACKING = 1e-12  # the square of the part of a vector outside of the others, below which it is rounding


class EndPoint(Problem):
    """All numbers of a family at once."""

    def __init__(self, family: Family, batches: Sequence[Paths]) -> None:
        super().__init__(batches)
        self.family = family
        self.learned = {name: p for name, p in family.named_parameters() if p.requires_grad}
        self.together = TOGETHER if batches[0].x1.is_cuda else 0

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

    def tangents(self, theta: Tensor) -> "Tangents":
        """How the table moves with each number of theta."""

        def numbers(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            table = self.table(theta)
            return table.t, table.a, table.b

        with torch.enable_grad():
            jacobian = torch.autograd.functional.jacobian(numbers, theta, vectorize=True)  # type: ignore[no-untyped-call]
        return Tangents(*(part.movedim(-1, 0) for part in jacobian))

    def linearise(self, theta: Tensor, weights: list[Tensor], difference: float) -> Iterator[Linearised]:
        """Tangents go through the table exactly, and through u by differences."""
        table, tangents = self.table(theta), self.tangents(theta)
        for paths in self.batches:
            try:
                yield push_forward(table, tangents, paths, difference, together=self.together)
                continue
            except torch.cuda.OutOfMemoryError:
                if not self.together:
                    raise
            self.together = 0  # from now on
            yield push_forward(table, tangents, paths, difference)


class Tangents(NamedTuple):
    """Directions in the space of tables."""

    dt: Float[Tensor, "m n"]
    da: Float[Tensor, "m n+1"]
    db: Float[Tensor, "m n+1 n"]


def push_forward(
    table: Table,
    tangents: Tangents,
    paths: Paths,
    difference: float,
    directions: int = DIRECTIONS,
    together: int = 0,
) -> Linearised:
    """y_n, and how it moves when the table moves along each of the tangents.

    dy_k = da_k x0 + sum_j db_kj u_j + b_kj du_j, and du_k is the derivative of u at (t_k, y_k) along (dt_k, dy_k). The
    tangents are many, but a sample's dy_k lie close to a few `directions`: u is evaluated along those, and the part of
    a dy_k outside of them is taken not to move u_k. Inputs are moved by `difference`, times by that part of a step.
    As many directions go through the network at once as are `together` numbers.
    """
    x0, u = paths.noise.x0, paths.model.bind(paths.noise.condition)
    us: list[Tensor] = []

    def kept(t: Tensor, y: Tensor) -> Tensor:
        us.append(u(t, y))
        return us[-1]

    *ys, y_n = states(table, kept, x0)
    t, b, dt, da, db = (part.to(x0) for part in (table.t, table.b, *tangents))
    moving: list[tuple[Tensor, Tensor]] = []  # of u_0, u_1, ...: derivatives, and their weights in each du
    for k in range(table.nfe + 1):
        dy = torch.einsum("m,b...->mb...", da[:, k], x0)
        for j, (derivatives, weights) in enumerate(moving):
            dy += torch.einsum("m,b...->mb...", db[:, k, j], us[j])
            dy += torch.einsum("mbr,rb...->mb...", b[k, j] * weights, derivatives)
        if k == table.nfe:
            break
        basis, weights = main_directions(dy, directions)
        parts = torch.split(basis, max(1, together // x0.numel()))
        found = [along(paths, t[k], ys[k], us[k], part, difference) for part in parts if len(part)]
        if dt[:, k].any():
            by, after = difference / table.nfe, paths.model.t_hi - table.t[k].item()
            by = by if by <= after else -min(by, table.t[k].item() - paths.model.t_lo) or after
            found.append(finite((u(t[k] + by, ys[k]) - us[k])[None] / by))
            weights = torch.cat([weights, dt[:, k, None, None].expand(-1, len(x0), 1)], -1)
        moving.append((torch.cat(found) if found else basis, weights))
    return Linearised(y_n, dy)


def main_directions(
    dy: Float[Tensor, "m b *shape"], most: int
) -> tuple[Float[Tensor, "r b *shape"], Float[Tensor, "m b r"]]:
    """An orthonormal basis for each sample that spans the m vectors, or nearly where they are more than `most`; and
    their coefficients. It spans random combinations of them (the range finder of Halko, Martinsson & Tropp 2011)."""
    vectors = dy.flatten(2)
    moving = vectors.flatten(1).any(1).cpu()
    most, count = min(most, vectors.shape[-1]), int(moving.sum())
    if count > most:
        mixing = torch.zeros(most, len(vectors), dtype=torch.float64)
        mixing[:, moving] = torch.randn(most, count, generator=torch.Generator().manual_seed(0), dtype=mixing.dtype)
        spanning = torch.einsum("rm,mbd->rbd", mixing.to(dy), vectors)
    else:
        spanning = vectors[moving.to(vectors.device)]
    basis = orthonormal(spanning)
    return basis.reshape(-1, *dy.shape[1:]), torch.einsum("mbd,rbd->mbr", vectors, basis)


def orthonormal(vectors: Float[Tensor, "r b d"]) -> Float[Tensor, "r b d"]:
    """An orthonormal basis of what each sample's vectors span; a direction that they lack is short, or zero.

    By Cholesky's factor of their products, which is found on the CPU: a GPU takes one sample after another there.
    """
    exact = float64(vectors)
    unit = exact / exact.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(exact.dtype).tiny)
    one = torch.eye(len(unit), dtype=unit.dtype)
    products = torch.einsum("rbd,sbd->brs", unit, unit).cpu().nan_to_num() + LACKING * one
    mixing = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(products).L, one, upper=False)
    return torch.einsum("brs,sbd->rbd", mixing.to(unit), unit).to(vectors)


def along(
    paths: Paths, t: Tensor, y: Tensor, u_y: Tensor, directions: Float[Tensor, "r b *shape"], by: float
) -> Float[Tensor, "r b *shape"]:
    """The derivatives of u at (t, y), where it is u_y, along each sample's directions, by differences of that size."""
    r = len(directions)
    h = expand(by / norm(directions.flatten(0, 1)).reshape(r, -1).mean(1), directions)
    condition = map_condition(lambda c: c.repeat(r, *[1] * (c.ndim - 1)), paths.noise.condition)
    moved = paths.model.bind(condition)(t, (y + h * directions).flatten(0, 1))
    return finite((moved.reshape(directions.shape) - u_y) / h)


def finite(derivatives: Tensor) -> Tensor:
    """These, changed in place to 0 where u overflows beside the solver's own points: nothing is learned there."""
    return derivatives.nan_to_num_(0.0, 0.0, 0.0)
