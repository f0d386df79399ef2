"""A table whose network is called from outside: the loop of `table.states`, turned inside out.

With u_k from the network's output at y_k, the next input is y_{k+1} = a_{k+1} x0 + sum_{j<=k} b_{k+1,j} u_j.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bespoke_solvers.adapters.diffusers import Meaning
from bespoke_solvers.dedicated import along
from bespoke_solvers.schedules import Schedule
from bespoke_solvers.table import Table, combine
from bespoke_solvers.velocity import coefficients, expand


def rounded(t: Tensor) -> Tensor:
    """Times as the network got them in a fit: rounded to float32, in float64."""
    return t.float().double()


def full(x: Tensor) -> Tensor:
    """In float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass
class Stepper:
    """A batch on its way through a table, in float32 or better; `dtype` is that in which the caller has it."""

    table: Table
    meaning: Meaning
    x0: Tensor
    state: Tensor
    dtype: torch.dtype
    velocities: list[Tensor] = field(default_factory=list)

    @classmethod
    def from_first_input(cls, table: Table, meaning: Meaning, sample: Tensor) -> "Stepper":
        """Begun at y_0 = a_0 x0."""
        state = full(sample)
        return cls(table, meaning, state / table.a[0].item(), state.clone(), sample.dtype)

    @property
    def finished(self) -> bool:
        """Whether all evaluations are done."""
        return len(self.velocities) == self.table.nfe

    def given_out(self, sample: Tensor) -> bool:
        """Whether the sample is the state as it was given out, in whatever dtype it is now."""
        expected = self.state.to(self.dtype).to(sample)
        return sample.shape == expected.shape and torch.allclose(sample, expected, rtol=0, atol=0, equal_nan=True)

    def advance(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        """The next input, or the result, from the network's output at the state."""
        k, meaning = len(self.velocities), self.meaning
        weights = coefficients(meaning.prediction, meaning.schedule, rounded(self.table.t[k]))
        x_weight, output_weight = (expand(value, self.state) for value in weights)
        self.velocities.append(x_weight * self.state + output_weight * (meaning.sign * output.to(self.state)))
        self.state = combine(self.table.a[k + 1], self.table.b[k + 1], self.x0, self.velocities)
        self.dtype = dtype
        return self.state.to(dtype, copy=True)


def dpm_solver(schedule: Schedule, times: Tensor) -> Table:
    """DPM-Solver++(2M) from x(t_0) on, along times that may repeat or reach sigma = 0: such an output is not used."""
    used = [0]
    for k in range(1, len(times)):
        if times[k] > times[used[-1]] and schedule(times[k]).sigma > 0:
            used.append(k)
    table = along("dpmpp-2m", times[used], schedule)
    rows = [sum(j <= k for j in used) - 1 for k in range(len(times))] + [len(used)]
    b = times.new_zeros(len(rows), len(times))
    b[:, used] = table.b[rows]
    return Table(times, table.a[rows], b)
