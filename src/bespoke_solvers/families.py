"""Learnable solvers: theta -> table (paper, Sections 2.1 and 2.2, Appendices E and F)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bespoke_solvers.generic import EULER, MIDPOINT, Tableau, baseline, runge_kutta, step, steps_for, uniform_grid
from bespoke_solvers.scale_time import ScaleTime, Transform, transformed_velocity
from bespoke_solvers.table import Table, trace
from bespoke_solvers.velocity import Model, Velocity

Learn = Literal["both", "time", "scale"]


def bespoke_step(tableau: Tableau, transform: Transform, n: int, i: int, u: Velocity, x: Tensor) -> Tensor:
    """Step i of n: transform to x_bar = s_r x, step with u_bar from r = i/n to (i+1)/n, transform back (eq. 10-12)."""
    r, r_next = torch.tensor([i / n, (i + 1) / n], dtype=torch.float64)
    x_bar = step(tableau, transformed_velocity(u, transform), r, transform(r).s * x, 1 / n)
    return x_bar / transform(r_next).s


def bespoke_table(tableau: Tableau, transform: Transform, n: int) -> Table:
    """The n-step solver of a base method on transformed paths (Algorithm 3), for any transform with s_0 = 1."""

    def method(u: Velocity, x: Tensor) -> Tensor:
        for i in range(n):
            x = bespoke_step(tableau, transform, n, i, u, x)
        return x

    return trace(method, n * tableau.stages)


class Bespoke(nn.Module):
    """The n-step Bespoke solver of a base method: RK1-Bespoke for Euler, RK2-Bespoke for the midpoint method.

    theta holds a value at each node r where the base method evaluates, and at r = 1 (Appendix F): t_r a normalised
    sum of |theta|, so that 0 = t_0 < ... < t_n = 1; dt_r = |theta|; s_r = exp(theta) with s_0 = 1; ds_r free. It starts
    at the identity t_r = r, s_r = 1, where the solver is the base method. `learn` may hold time or scale fixed.
    """

    def __init__(self, n: int, tableau: Tableau = MIDPOINT, learn: Learn = "both") -> None:
        super().__init__()
        if n < 1:
            raise ValueError(f"a solver needs at least one step, got n = {n}")
        self.n, self.tableau, self.learn = n, tableau, learn
        inside = sorted({c for c in tableau.c if c < 1})
        self.r = [(i + c) / n for i in range(n) for c in inside] + [1.0]
        nodes = torch.tensor(self.r, dtype=torch.float64)
        evaluated = len(nodes) if 1.0 in tableau.c else len(nodes) - 1
        time, scale = learn in ("both", "time"), learn in ("both", "scale")
        self.theta_t = nn.Parameter(nodes.diff() * (len(nodes) - 1), requires_grad=time)
        self.theta_dt = nn.Parameter(torch.ones(evaluated, dtype=torch.float64), requires_grad=time)
        self.theta_s = nn.Parameter(torch.zeros(len(nodes) - 1, dtype=torch.float64), requires_grad=scale)
        self.theta_ds = nn.Parameter(torch.zeros(evaluated, dtype=torch.float64), requires_grad=scale)

    @property
    def nfe(self) -> int:
        """Evaluations of a sample."""
        return self.n * self.tableau.stages

    @property
    def name(self) -> str:
        """`rk1`, `rk2`, or `heun-bespoke` and the like for another base method."""
        return next((name for name, base in BASES.items() if base == self.tableau), f"{self.tableau.name}-bespoke")

    @property
    def base(self) -> str:
        """The method to compare with."""
        return self.tableau.name

    def base_table(self) -> Table:
        """That method's table with as many evaluations."""
        return runge_kutta(self.tableau, uniform_grid(self.n))

    def nodes(self) -> ScaleTime:
        """t and s at all nodes, dt and ds at those where the base method evaluates (r = 1 may not be one)."""
        zero = self.theta_t.new_zeros(1)
        ends = self.theta_t.abs().cumsum(0)
        t = torch.cat([zero, ends / ends[-1]])
        return ScaleTime(t, self.theta_dt.abs(), torch.cat([zero, self.theta_s]).exp(), self.theta_ds)

    def transform(self) -> Transform:
        """The transform as a function of r, known at the nodes alone."""
        nodes = self.nodes()

        def at(r: Tensor) -> ScaleTime:
            node = min(range(len(self.r)), key=lambda k: abs(self.r[k] - r.item()))
            last = min(node, len(nodes.dt) - 1)  # dt and ds at r = 1 are asked for, not used
            return ScaleTime(nodes.t[node], nodes.dt[last], nodes.s[node], nodes.ds[last])

        return at

    def forward(self) -> Table:
        """The solver's table."""
        return bespoke_table(self.tableau, self.transform(), self.n)

    def steps(self) -> Table:
        """The n steps, each as a table of its own from x(t_i) to x(t_{i+1}), along the last axis."""
        transform = self.transform()

        def one_step(i: int) -> Table:
            return trace(lambda u, x: bespoke_step(self.tableau, transform, self.n, i, u, x), self.tableau.stages)

        return Table.stack([one_step(i) for i in range(self.n)])

    def step_times(self) -> Float[Tensor, " m"]:
        """t_0, ..., t_n, between which the steps go."""
        return self.nodes().t[:: (len(self.r) - 1) // self.n]


class NonStationary(nn.Module):
    """A table whose numbers are all free (Shaul et al. 2024, "Bespoke Non-Stationary Solvers"), from a given one.

    The times add up steps |theta|, so that t_0 <= ... <= t_{n-1} <= 1. With `learn_start` the first time and (with
    `learn_scale`, too) the scale of the first input are learned: at t_0 = 0 the velocity of a flow says no more than
    the data's mean.
    """

    name = "ns"

    def __init__(self, table: Table, learn_start: bool = True, learn_scale: bool = True) -> None:
        super().__init__()
        if (table.t.diff() < 0).any():
            raise ValueError(f"the times of a non-stationary solver must not decrease, got {table.t.tolist()}")
        self.nfe, self.learn_start, self.learn_scale = table.nfe, learn_start, learn_start and learn_scale
        self.theta_t0 = nn.Parameter(table.t[:1].clone(), requires_grad=learn_start)
        self.theta_t = nn.Parameter(table.t.diff())
        self.theta_a0 = nn.Parameter(table.a[:1].clone(), requires_grad=self.learn_scale)
        self.theta_a = nn.Parameter(table.a[1:].clone())
        self.theta_b = nn.Parameter(table.b[self._lower()].clone())

    @property
    def learn(self) -> str:
        """What is learned."""
        held = "the scale of the noise" if self.learn_start else "the start"
        return "all" if self.learn_scale else f"all but {held}"

    def held_start(self, model: Model) -> Float[Tensor, " 1"] | None:
        """t_0 on the model, if it is not learned."""
        return None if self.learn_start else self().detach().on(model).t[:1]

    def held_scale(self, model: Model) -> float | None:
        """a_0 on the model, if it is not learned."""
        return None if self.learn_scale else self.theta_a0.item() * model.start_scale

    @property
    def base(self) -> str:
        """The method to compare with: the midpoint method where the evaluations are even, else Euler's."""
        return "euler" if self.nfe % 2 else "midpoint"

    def base_table(self) -> Table:
        """That method's table with as many evaluations."""
        return baseline(self.base, self.nfe)

    @torch.no_grad()
    def load_table(self, table: Table) -> None:
        """Take over the numbers of a table with as many evaluations."""
        if table.nfe != self.nfe:
            raise ValueError(f"got a table with {table.nfe} evaluations, expected one with {self.nfe}")
        for own, new in zip(self.parameters(), NonStationary(table).parameters(), strict=True):
            own.copy_(new)

    def _lower(self) -> tuple[Tensor, Tensor]:
        row, column = torch.tril_indices(self.nfe + 1, self.nfe, offset=-1)
        return row, column

    def forward(self) -> Table:
        """The table."""
        theta = torch.cat([self.theta_t0, self.theta_t])
        t = torch.where(theta < 0, -theta, theta).cumsum(0).clamp(max=1)  # unlike abs, with a gradient at 0
        b = t.new_zeros(self.nfe + 1, self.nfe).index_put(self._lower(), self.theta_b)
        return Table(t, torch.cat([self.theta_a0, self.theta_a]), b)


Family = Bespoke | NonStationary

BASES = {"rk1": EULER, "rk2": MIDPOINT}
FAMILIES = (NonStationary.name, *BASES)


def make(family: str, nfe: int, learn: Learn = "both", learn_scale: bool = True) -> Family:
    """The named family with `nfe` evaluations, at its base method (`ns`: Euler's); `learn_scale` is for `ns`."""
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; expected one of {', '.join(FAMILIES)}")
    if nfe < 1:
        raise ValueError(f"a solver needs at least one evaluation, got nfe = {nfe}")
    if family == NonStationary.name:
        if learn != "both":
            raise ValueError(f"learn = {learn!r} is for {' and '.join(BASES)}; ns has no time and scale to tell apart")
        return NonStationary(baseline("euler", nfe), learn_scale=learn_scale)
    return Bespoke(steps_for(BASES[family], nfe), BASES[family], learn)
