"""A solver is a table of numbers, and this is the loop that runs it.

With n evaluations of u, every method whose coefficients are scalars computes

    y_k = a_k x0 + sum_{j<k} b_kj u_j    k = 0..n
    u_k = u(t_k, y_k)                    k = 0..n-1,    result: y_n.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bespoke_solvers.velocity import Model, Velocity, checked, expand

Method = Callable[[Velocity, Tensor], Tensor]


class TableError(ValueError):
    """Numbers that are no table."""


@dataclass(frozen=True)
class Table:
    """The numbers of a solver, in float64: t has n entries, a n + 1, b is (n + 1) x n, zero on and above the diagonal.

    A last axis may hold one solver for each sample of a batch.
    """

    t: Tensor
    a: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        n, *batch = self.t.shape
        expected = {"t": (n, *batch), "a": (n + 1, *batch), "b": (n + 1, n, *batch)}
        for name, shape in expected.items():
            value = getattr(self, name)
            if tuple(value.shape) != shape or n == 0:
                raise TableError(
                    f"{name} has the shape {tuple(value.shape)}; a table of {n} evaluations needs {shape}"
                    if n
                    else "a table needs at least one evaluation, got none"
                )
            if value.dtype != torch.float64:
                raise TableError(f"{name} is {value.dtype}; a table is kept in torch.float64")
            if not value.isfinite().all():
                raise TableError(f"{name} holds a number that is not finite: {value.detach().tolist()}")
        if (self.t < 0).any() or (self.t > 1).any():
            raise TableError(f"times must lie in [0, 1], got {self.t.detach().tolist()}")
        k, j = torch.triu_indices(n + 1, n)
        if self.b[k, j].any():
            raise TableError(
                "b must be zero on and above the diagonal: y_k uses the velocities before it, u_j with j < k"
            )

    @property
    def nfe(self) -> int:
        """How often u is evaluated."""
        return len(self.t)

    @classmethod
    def stack(cls, tables: Sequence["Table"]) -> "Table":
        """One table with the given ones along a last axis."""
        return cls(*(torch.stack([getattr(table, name) for table in tables], dim=-1) for name in ("t", "a", "b")))

    def repeat_interleave(self, repeats: int) -> "Table":
        """Each solver of the last axis, `repeats` times."""
        return Table(*(value.repeat_interleave(repeats, dim=-1) for value in (self.t, self.a, self.b)))

    def detach(self) -> "Table":
        """Without the graph that made it."""
        return Table(self.t.detach(), self.a.detach(), self.b.detach())

    def within(self, t_lo: float, t_hi: float) -> "Table":
        """The same solver from t_lo to 1 instead of 0 to 1; a stage that would lie beyond t_hi is taken at t_hi."""
        return Table((t_lo + (1 - t_lo) * self.t).clamp(max=t_hi), self.a, (1 - t_lo) * self.b)

    def on(self, model: Model) -> "Table":
        """For that model: started at x(t_lo) = start_scale x0, and evaluated in the model's domain."""
        mapped = self.within(model.t_lo, model.t_hi)
        return Table(mapped.t, mapped.a * model.start_scale, mapped.b)

    def off(self, model: Model) -> "Table":
        """The inverse of `on`: as from 0 to 1 with a start of scale 1."""
        length = 1 - model.t_lo
        return Table((self.t - model.t_lo) / length, self.a / model.start_scale, self.b / length)


def trace(method: Method, nfe: int) -> Table:
    """The table of a method `method(u, x0) -> result` with `nfe` evaluations, whatever way the method is written.

    The method is run once on basis vectors: x0 and the velocities are the columns of an identity matrix, so what it
    passes to u and what it returns are the rows of (a, b). Gradients flow through.
    """
    basis = torch.eye(nfe + 1, dtype=torch.float64)
    times: list[Tensor] = []
    rows: list[Tensor] = []

    def u(t: Tensor, y: Tensor) -> Tensor:
        if len(times) == nfe:
            raise ValueError(f"the method evaluates u more than the {nfe} times it was said to")
        times.append(t)
        rows.append(y)
        return basis[len(times)]

    rows.append(method(u, basis[0]))
    if len(times) < nfe:
        raise ValueError(f"the method evaluates u {len(times)} times, not the {nfe} times it was said to")
    ab = torch.stack(rows)
    return Table(torch.stack(times), ab[:, 0], ab[:, 1:])


def combine(a: Tensor, b: Tensor, x0: Tensor, us: Sequence[Tensor]) -> Tensor:
    """a x0 + sum_j b_j u_j."""
    y = expand(a, x0) * x0
    for b_j, u_j in zip(b, us, strict=False):
        y = y + expand(b_j, x0) * u_j
    return y


def states(table: Table, u: Velocity, x0: Float[Tensor, "b *shape"]) -> Iterator[Float[Tensor, "b *shape"]]:
    """y_0, ..., y_n of a run from the starting points x0: each input of u as it is evaluated, then the result.

    The state is carried in float32 or better; u gets y in x0's dtype and t in the state's. What u gives is copied: a
    recorded network writes into the same memory each time.
    """
    x = x0.to(torch.promote_types(x0.dtype, torch.float32))
    t, a, b = (value.to(x) for value in (table.t, table.a, table.b))
    us: list[Tensor] = []
    for k in range(table.nfe + 1):
        y = combine(a[k], b[k], x, us).to(x0.dtype)
        yield y
        if k < table.nfe:
            us.append(checked(u(t[k], y), t[k], y).to(x.dtype, copy=True))


def sample(table: Table, u: Velocity, x0: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *shape"]:
    """The table's result for the starting points x0, with exactly `table.nfe` calls of u."""
    return deque(states(table, u, x0), maxlen=1).pop()  # the others are not kept
